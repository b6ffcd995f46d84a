package kubernetes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"trainmaster/master/podmanager"
)

func podWith(edit func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "j-worker-0-0", Labels: map[string]string{JobLabel: "j", RoleLabel: "worker", IndexLabel: "0", AttemptLabel: "0"}}}
	pod.Status.Phase = corev1.PodRunning
	edit(pod)
	return pod
}

func main1(state corev1.ContainerState) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{Name: Main, State: state}}
}

func TestObservationFollowsTheStatusOfThePod(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ended := func(code int32, reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}}
	}
	taint := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager"}
	for name, c := range map[string]struct {
		edit    func(*corev1.Pod)
		ended   bool
		outcome podmanager.Outcome
		words   string
	}{
		"runs": {func(p *corev1.Pod) { p.Status.ContainerStatuses = main1(running) }, false, 0, ""},
		"image": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses = main1(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no image"}})
		}, false, 0, "ImagePullBackOff: no image"},
		"unscheduled": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes"}}
		}, false, 0, "Unschedulable: 0/1 nodes"},
		"memory": {func(p *corev1.Pod) { p.Status.ContainerStatuses = main1(ended(137, "OOMKilled", "")) }, true, podmanager.OutOfMemory, ""},
		"usage":  {func(p *corev1.Pod) { p.Status.ContainerStatuses = main1(ended(64, "Error", "--data: found nothing")) }, true, podmanager.Usage, ""},
		"main ended, another container runs": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses = append(main1(ended(0, "Completed", "")), corev1.ContainerStatus{Name: "log", State: running})
		}, true, podmanager.Completed, ""},
		"another container ended": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses = append(main1(running), corev1.ContainerStatus{Name: "log", State: ended(1, "Error", "")})
		}, false, 0, ""},
		"init container failed": {func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "copy", State: ended(1, "Error", "disk full")}}
		}, true, podmanager.Charged, ""},
		"evicted by the kubelet": {func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "low on memory"
		}, true, podmanager.Free, "Evicted: low on memory"},
		"evicted by the API": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"}}
			p.Status.ContainerStatuses = main1(ended(1, "Error", ""))
		}, true, podmanager.Free, ""},
		"scheduling gate": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "SchedulingGated", Message: "blocked"}}
		}, false, 0, "SchedulingGated: blocked"},
		"node lost": {func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{}
			p.Status.Conditions = []corev1.PodCondition{taint, {Type: corev1.PodReady, Status: corev1.ConditionFalse}}
			p.Status.ContainerStatuses = main1(running)
		}, true, podmanager.Free, ""},
		"taint of a node that answers": {func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{}
			p.Status.Conditions = []corev1.PodCondition{taint, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			p.Status.ContainerStatuses = main1(running)
		}, false, 0, ""},
	} {
		p, ok := observed(podWith(c.edit), own{})
		if !ok || p.Ended() != c.ended || p.Words != c.words {
			t.Errorf("%s: expected an end: %v, and %q, found %+v", name, c.ended, c.words, p)
			continue
		}
		if outcome, reason := p.Outcome(); c.ended && outcome != c.outcome {
			t.Errorf("%s: expected %v, found %v: %s", name, c.outcome, outcome, reason)
		}
	}
}

// F350: labels can be copied, and two jobs can have one name.
func TestPodsOfOthersAreIgnored(t *testing.T) {
	job := own{owner: []metav1.OwnerReference{{UID: "job-uid"}}}
	owned := func(uid types.UID) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "m", UID: uid}} }
	}
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		self own
		ok   bool
	}{
		"of this job":                  {owned("job-uid"), job, true},
		"without an owner":             {func(*corev1.Pod) {}, job, true},
		"of another job":               {owned("other-uid"), job, false},
		"owned, of a job without that": {owned("other-uid"), own{}, false},
		"copy with the same labels":    {func(p *corev1.Pod) { p.Name = "debug" }, job, false},
		"no index":                     {func(p *corev1.Pod) { p.Labels[IndexLabel] = "x" }, job, false},
		"attempt too large": {func(p *corev1.Pod) {
			p.Labels[AttemptLabel], p.Name = "9223372036854775807", "j-worker-0-9223372036854775807"
		}, job, false},
	} {
		if _, ok := observed(podWith(c.edit), c.self); ok != c.ok {
			t.Errorf("%s: expected %v, found %v", name, c.ok, ok)
		}
	}
	if _, ok := observed(podWith(func(p *corev1.Pod) {
		p.Name, p.Labels[RankLabel], p.Labels[SizeLabel] = "j-worker-0-0-2", "2", "2"
	}), own{}); ok {
		t.Error("a pod with a rank outside its group was accepted")
	}
}
