package e2e

import (
	"strings"
	"syscall"
	"testing"
)

// The first scale request of a job waits for a parameter server that is missing, and is stored when the server is registered. Ctrl-C before that
// leaves the job unchanged.
func TestFirstScaleRequestWaitsForMissingServer(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.master("--ps", "2", "--lease-ttl", "60s") // the term must not end on a busy machine
	servers := []*process{j.server(), j.server()}
	j.load(1)
	for _, s := range servers {
		if s.awaitLog("shard="); strings.Contains(s.log(), "shard=1") {
			s.signal(syscall.SIGTERM) // it keeps a checkpoint
			s.wantExit(0)
		}
	}
	const missing = "nothing is stored yet: parameter server with index 1 (of 0 to 1) is not there: start one with: master pserver --endpoints "
	up := start(t, "scale", j.dir, j.in("scale", "ps=1")...)
	up.awaitLog(missing)
	up.signal(syscall.SIGINT)
	up.wantExit(1)
	if !strings.Contains(up.log(), "the number of parameter servers is unchanged") {
		t.Errorf("interrupted command: expected that nothing changes, found %q", up.log())
	}
	up = start(t, "scale", j.dir, j.in("scale", "ps=1")...)
	up.awaitLog(missing)
	j.server()
	up.wantExit(0)
	if got := j.layout(); got.Shards != 1 || got.Goal != 1 {
		t.Errorf("expected 1 parameter server, found %+v", got)
	}
}
