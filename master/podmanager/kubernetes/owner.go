package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// Annotate writes annotations of the Job that controls the pod of the master. Its service account must have the right to patch this Job.
func (c *Cluster) Annotate(ctx context.Context, annotations map[string]string) error {
	if err := c.introduce(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	job := c.self.target
	c.mu.Unlock()
	if job.Kind != "Job" {
		return errors.New("the pod of the master: expected a Job as its controller, found none: run the master in a Job")
	}
	//guard:annotation-of-its-own-job
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": job.UID, "annotations": annotations}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	path := fmt.Sprintf("/apis/batch/v1/namespaces/%s/jobs/%s", c.config.Namespace, job.Name)
	if err := c.core.Patch(types.MergePatchType).AbsPath(path).Body(patch).Do(ctx).Error(); err != nil {
		return fmt.Errorf("annotate the Job %s: %w", job.Name, err)
	}
	return nil
}
