package podmanager_test

import (
	"testing"

	"trainmaster/master/podmanager"
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
