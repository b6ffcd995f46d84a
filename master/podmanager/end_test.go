package podmanager_test

import (
	"strings"
	"testing"

	"trainmaster/master/podmanager"
	"trainmaster/taskqueue"
)

// F323: the pods of a job that fails are listed once more for their deletion, and a create that is in progress then would stay.
func TestFailedJobGetsNoFurtherPods(t *testing.T) {
	c := podmanager.Config{Job: "j", Instance: instance, MaxRelaunch: 3, OOMFactor: 1.5, Workers: podmanager.Group{Count: 2, Min: 2}}
	seen := podmanager.Observed{Pods: []podmanager.Pod{{
		Name: "j-worker-1-0", UID: "u", Instance: instance, Role: podmanager.Worker, Index: 1, Phase: podmanager.Failed, Exit: &podmanager.Exit{Code: 64},
	}}}
	d := podmanager.Plan(c, podmanager.State{}, seen, 0)
	if d.End == nil || !d.End.Failed || len(d.Actions) > 0 {
		t.Errorf("expected the end of the job and no action, found %+v and %+v", d.End, d.Actions)
	}
}

// F273: a webhook or a VerticalPodAutoscaler can give a pod less memory than it asks for.
func TestPodWithLessMemoryThanItAskedForIsGivenUp(t *testing.T) {
	const mib = 1 << 20
	c := podmanager.Config{Job: "j", Instance: instance, Workers: podmanager.Group{Count: 1, Min: 1, Memory: 100 * mib}, MaxRelaunch: 3, OOMFactor: 1.5}
	var s podmanager.State
	for n := range 20 {
		slot := s.Slot(podmanager.Worker, 0)
		if slot.Done == podmanager.GivenUp {
			return
		}
		s = podmanager.Plan(c, s, podmanager.Observed{Pods: []podmanager.Pod{{
			Name: podmanager.Name("j", podmanager.Worker, 0, slot.Attempt), UID: "u", Instance: instance, Role: podmanager.Worker, Attempt: slot.Attempt, Memory: 100 * mib,
			Phase: podmanager.Failed, Exit: &podmanager.Exit{Code: 137, Reason: "OOMKilled"},
		}}}, taskqueue.Clock(100*n)).State
	}
	t.Errorf("20 attempts, and no end: %+v", s.Slots)
}

// F283: a character of the last words can take six bytes in JSON.
func TestStateOfPodsWithAnyWordsFitsAValue(t *testing.T) {
	for _, words := range []string{"<", "\x1b", "\x00", "&", "\u2028", `"`} {
		c := podmanager.Config{Job: "j", Instance: instance, Workers: podmanager.Group{Count: podmanager.MaxPods, Min: 1}, OOMFactor: 1.5}
		var pods []podmanager.Pod
		for i := range podmanager.MaxPods {
			pods = append(pods, podmanager.Pod{
				Name: podmanager.Name("j", podmanager.Worker, i, 0), UID: "u", Instance: instance, Role: podmanager.Worker, Index: i,
				Phase: podmanager.Failed, Exit: &podmanager.Exit{Code: 1, Message: strings.Repeat(words, 400)},
			})
		}
		d := podmanager.Plan(c, podmanager.State{}, podmanager.Observed{Pods: pods}, 1000)
		if n := len(d.State.Encode()); n > 1400<<10 {
			t.Errorf("words of %q: expected less than a value of etcd, found %d bytes", words, n)
		}
	}
}
