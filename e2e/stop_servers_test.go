package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"trainmaster/pserver/checkpoint"
)

// F163: parameter servers are stopped and started again under load, one after the other, together, and one
// after the other without a start between. There are no checkpoint
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
	stopped := func(i int) {
		t.Helper()
		servers[i].wantExit(0)
		servers[i].awaitLog("parameter server stopped")
		if strings.Contains(servers[i].log(), "are lost") {
			t.Errorf("server %d stopped without a last set", i)
		}
	}
	stop := func(i int) {
		t.Helper()
		servers[i].signal(syscall.SIGTERM)
		stopped(i)
	}
	restart := func(which ...int) {
		progress()
		for _, i := range which {
			servers[i].signal(syscall.SIGTERM)
		}
		for _, i := range which {
			stopped(i)
			servers[i] = j.server()
		}
	}
	j.underLoad(loads, func() {
		restart(0)
		restart(1)
		restart(0, 1)
		progress()
		stop(0)
		stop(1) // server 0 is absent
		servers[0], servers[1] = j.server(), j.server()
		progress()
	})
	if set := j.latestSet(); set.Number < 4 {
		t.Errorf("the latest set is %v, expected one for each stop after the first", set)
	}
}

// F166: a parameter server is killed before the first checkpoint set of an asynchronous job. Its trainers initialize the parameters again
// and continue, and each record is counted once.
func TestServerKilledBeforeTheFirstSet(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	master := j.master("--passes", "2", "--ps", "2")
	servers := []*process{j.server(), j.server()}
	for _, s := range servers {
		s.awaitLog("parameter server started")
	}
	sets := filepath.Join(j.checkpoints(), checkpoint.SetsDir)
	if err := os.WriteFile(sets, nil, 0o600); err != nil { // no set can be written while this file exists
		t.Fatal(err)
	}
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	trainers[0].awaitLog("does not take the update yet")
	master.awaitLog("checkpoint not complete")
	servers[1].kill()
	if err := os.Remove(sets); err != nil {
		t.Fatal(err)
	}
	servers[1] = j.server()
	servers[1].awaitLog("parameters initialized")
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	master.wantExit(0)
	j.wantExactlyOnce(2, tasksPerPass)
}
