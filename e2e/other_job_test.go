package e2e

import (
	"strings"
	"testing"
	"time"
)

// F527: the registry of a job has the address of a server that was killed, and a server of another job has this address now. Master and
// trainer of the job change nothing there, and continue with the next server.
func TestAddressOfAServerOfAnotherJob(t *testing.T) {
	t.Parallel()
	const passes = 6
	own := newJob(t)
	other := own.another()
	master := own.master("--passes", "6", "--ps", "1")
	own.server()
	otherMaster := other.master("--passes", "1", "--ps", "1", "--log-level", "debug")
	trainer := own.trainer("a")
	own.awaitMidPass(2)
	addrs, err := own.store.WaitPS(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	stale, err := other.store.ClaimPS(t.Context(), addrs[0], time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	foreign := []*process{otherMaster, other.trainer("b")}
	for _, p := range foreign {
		p.awaitLog("parameter server of another job")
	}
	if err := stale.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	other.server()
	for _, p := range append(foreign, trainer, master) {
		p.wantExit(0)
	}
	for _, at := range []struct {
		*job
		passes int
	}{{own, passes}, {other, 1}} {
		at.wantExactlyOnce(at.passes, tasksPerPass)
	}
	own.wantAccuracy(0.90)
	if log := trainer.log(); strings.Contains(log, "restarted") || strings.Contains(log, "lost") {
		t.Error("trainer: expected no change of its server")
	}
}
