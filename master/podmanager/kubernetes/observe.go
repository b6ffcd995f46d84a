package kubernetes

import (
	"cmp"
	"errors"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"trainmaster/master/podmanager"
)

// maxAttempt limits the number in the label of a pod, which is one less than the next attempt.
const maxAttempt = 1 << 30

// observed returns a pod as the plan sees it. ok is false for a pod that this job has not created: its name does not follow from its labels, or
// its owner is another controller than the owner of this job's pods.
func observed(pod *corev1.Pod, self own) (p podmanager.Pod, ok bool) {
	role := podmanager.Role(pod.Labels[RoleLabel])
	index, err1 := strconv.Atoi(pod.Labels[IndexLabel])
	attempt, err2 := strconv.Atoi(pod.Labels[AttemptLabel])
	rank, err3 := strconv.Atoi(cmp.Or(pod.Labels[RankLabel], "0"))
	size, err4 := strconv.Atoi(cmp.Or(pod.Labels[SizeLabel], "1"))
	switch {
	case role != podmanager.Worker && role != podmanager.Server || errors.Join(err1, err2, err3, err4) != nil:
		return p, false
	case index < 0 || index >= podmanager.MaxPods || attempt < 0 || attempt > maxAttempt || rank < 0 || rank >= size:
		return p, false
	}
	//guard:copy-of-a-pod-ignored
	if pod.Name != podmanager.NameOfRank(pod.Labels[JobLabel], role, index, attempt, rank) {
		return p, false
	}
	//guard:pod-of-another-owner-ignored
	if len(pod.OwnerReferences) > 0 && !self.owns(pod) {
		return p, false
	}
	p = Status(pod)
	p.Instance, p.Role, p.Index, p.Attempt, p.Rank, p.Size = pod.Labels[InstanceLabel], role, index, attempt, rank, size
	return p, true
}

// Status returns the state of any pod, without its place in a job: why it does not start, or how it has ended.
func Status(pod *corev1.Pod) podmanager.Pod {
	p := podmanager.Pod{
		Name: pod.Name, UID: string(pod.UID), Address: pod.Status.PodIP, Phase: podmanager.Phase(pod.Status.Phase), Deleting: pod.DeletionTimestamp != nil,
	}
	if i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == Main }); i >= 0 {
		p.Memory = pod.Spec.Containers[i].Resources.Limits.Memory().Value()
	}
	ready := false
	for _, c := range pod.Status.Conditions {
		isTrue := c.Status == corev1.ConditionTrue
		switch {
		case c.Type == corev1.DisruptionTarget && isTrue:
			//guard:disruption-observed
			p.Disruption = said(c.Reason, "")
		case c.Type == corev1.PodResizePending && isTrue:
			p.Words = said("resize "+c.Reason, c.Message)
		case c.Type == corev1.PodReady:
			ready = isTrue
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			//guard:words-of-the-scheduler
			p.Words = said(c.Reason, c.Message)
		}
	}
	for _, s := range pod.Status.InitContainerStatuses {
		observeContainer(&p, s, pod.Status.Phase == corev1.PodFailed)
	}
	running := false
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == Main {
			observeContainer(&p, s, true)
			running = s.State.Running != nil
		}
	}
	if pod.Status.Reason != "" {
		p.Words = said(pod.Status.Reason, pod.Status.Message)
	}
	// The taint of a node that does not answer deletes the pod, and nothing reports the end of its container.
	//guard:pod-of-a-lost-node
	if p.Deleting && p.Disruption == "DeletionByTaintManager" && running && !ready {
		p.Lost = true
	}
	return p
}

// observeContainer takes the end of a container, and the message of the cluster about its start.
func observeContainer(p *podmanager.Pod, s corev1.ContainerStatus, ends bool) {
	if w := s.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
		p.Words = said(w.Reason, w.Message)
	}
	if t := s.State.Terminated; t != nil && ends && (s.Name == Main || t.ExitCode != 0) {
		p.Exit = &podmanager.Exit{Code: int(t.ExitCode), Reason: t.Reason, Message: t.Message}
		if s.Name != Main {
			p.Exit.Container = s.Name
		}
	}
}

func said(reason, message string) string {
	switch {
	case message == "":
		return reason
	case reason == "":
		return message
	}
	return reason + ": " + message
}
