package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

// Leaders are killed while they seal the ledger. No entry is lost or duplicated, the next leader continues in the same
// directory, and `master verify` reads the whole ledger.
func TestKilledWhileSealing(t *testing.T) {
	t.Parallel()
	const passes = 8
	j := newJob(t)
	dir := filepath.Join(t.TempDir(), "ledger")
	flags := []string{"--passes", "8", "--ps", "1", "--lease-ttl", "2s", "--ledger-dir", dir, "--ledger-seal-every", "20"}
	leader := j.master(flags...)
	term := j.awaitLeader(0)
	j.server()
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	for sealed := 1; sealed <= 9; sealed += 4 { // the kill hits the write of a file or follows it closely
		eventually(t, "the ledger is sealed", func() (bool, string) {
			files, err := filepath.Glob(filepath.Join(dir, j.name, "*.sealed*"))
			return len(files) >= sealed && err == nil, strings.Join(files, " ")
		})
		leader.kill()
		leader = j.master(flags...)
		term = j.awaitLeader(term)
	}
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	leader.wantExit(0)
	j.wantExactlyOnce(passes, tasksPerPass)
	left, _, err := j.store.Prefixed(t.Context(), taskqueue.LedgerPrefix)
	if err != nil {
		t.Fatal(err)
	}
	state, _, _ := mastertest.State(t, j.store)
	if state.Commit < 200 || len(left) > int(state.Commit)/2 {
		t.Errorf("%d commits, %d of them in etcd: expected at most half", state.Commit, len(left))
	}
	o := run(t, j.dir, j.in("verify", "--ledger-dir", filepath.Join(t.TempDir(), "nowhere"))...)
	o.wants(t, 2, "sealed elsewhere")
	other := j.master("--passes", "8", "--ps", "1", "--ledger-dir", t.TempDir())
	other.wantExit(2)
	other.awaitLog("this master does not see the ledger of the job")
}
