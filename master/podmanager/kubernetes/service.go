package kubernetes

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"trainmaster/master/podmanager"
)

// serviceName returns the name of the Service of the workers of a job. It begins with a letter, as the name of a Service must.
func serviceName(job string) string { return "workers-" + job }

// ensureService creates the Service that gives the pods of groups their names, once: a pod finds rank 0 by its name before rank 0 has an address.
func (c *Cluster) ensureService(ctx context.Context, o own) error {
	c.naming.Lock()
	defer c.naming.Unlock()
	if c.named {
		return nil
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(c.config.Job), Namespace: c.config.Namespace, OwnerReferences: o.owner, Labels: map[string]string{JobLabel: c.config.Job}},
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true, // the program starts before the pod is ready
			Selector: map[string]string{JobLabel: c.config.Job, RoleLabel: string(podmanager.Worker)},
			Ports:    []corev1.ServicePort{{Name: "group", Port: GroupPort}},
		},
	}
	err := c.core.Post().Namespace(c.config.Namespace).Resource("services").Body(service).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		var found corev1.Service
		if err = c.core.Get().Namespace(c.config.Namespace).Resource("services").Name(service.Name).Do(ctx).Into(&found); err == nil && !ofOwner(&found, service) {
			err = fmt.Errorf("%w: expected no Service %s, or one of this job, found another: delete it", ErrOccupied, service.Name)
		}
	}
	if err != nil {
		return fmt.Errorf("create the Service of the groups: %w", err)
	}
	c.named = true
	return nil
}

// ofOwner reports whether a Service is of the job and the owner of another. The Service of a deleted owner is about to be deleted.
func ofOwner(found, want *corev1.Service) bool {
	//guard:service-of-another-owner
	return found.Labels[JobLabel] == want.Labels[JobLabel] && slices.EqualFunc(found.OwnerReferences, want.OwnerReferences, func(a, b metav1.OwnerReference) bool { return a.UID == b.UID })
}
