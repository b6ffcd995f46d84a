package e2e

import (
	"syscall"
	"testing"
)

// F163: parameter servers are stopped and started again under load, one after the other and then together. There are no checkpoint
// sets but the first set and the sets that servers ask for. Every acknowledged push is applied once.
func TestStoppedServersLoseNothing(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.master("--passes", "100000", "--ps", "2", "--checkpoint-every", "never")
	servers := []*process{j.server(), j.server()}
	loads := []*load{j.load(1), j.load(2)}
	progress := func() {
		before := loads[0].steps.Load() + loads[1].steps.Load()
		eventually(t, "more pushes", func() (bool, string) { return loads[0].steps.Load()+loads[1].steps.Load() >= before+4, "" })
	}
	restart := func(which ...int) {
		progress()
		for _, i := range which {
			servers[i].signal(syscall.SIGTERM)
		}
		for _, i := range which {
			servers[i].wantExit(0)
			servers[i].awaitLog("parameter server stopped")
			servers[i] = j.server()
		}
	}
	j.underLoad(loads, func() {
		restart(0)
		restart(1)
		restart(0, 1)
		progress()
	})
	if set := j.latestSet(); set.Number < 4 {
		t.Errorf("the latest set is %v, expected one for each stop after the first", set)
	}
}
