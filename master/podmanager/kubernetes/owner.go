package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// Annotate writes annotations of the Job that controls the pod of the master, and returns all its annotations. The service account of the pod
// must have the right to patch this Job.
func (c *Cluster) Annotate(ctx context.Context, annotations map[string]string) (map[string]string, error) {
	if err := c.introduce(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	job := c.self.target
	c.mu.Unlock()
	if job.Kind != "Job" {
		return nil, errors.New("the pod of the master: expected a Job as its controller, found none: run the master in a Job")
	}
	//guard:annotation-of-its-own-job
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": job.UID, "annotations": annotations}})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	path := fmt.Sprintf("/apis/batch/v1/namespaces/%s/jobs/%s", c.config.Namespace, job.Name)
	reply, err := c.core.Patch(types.MergePatchType).AbsPath(path).SetHeader("Accept", "application/json").Body(patch).Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("annotate the Job %s: %w", job.Name, err)
	}
	var of struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal(reply, &of); err != nil {
		return nil, fmt.Errorf("annotate the Job %s: read the answer: %w", job.Name, err)
	}
	return of.Metadata.Annotations, nil
}
