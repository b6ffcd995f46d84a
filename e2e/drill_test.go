package e2e

import (
	"fmt"
	"strings"
	"testing"

	"trainmaster/local/drill"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// drillReport runs a drill and returns its report.
func drillReport(t testing.TB, dir string, code int, args ...string) (r drill.Report) {
	t.Helper()
	o := run(t, dir, append([]string{"drill"}, append(args, "-o", "json", "--patience", "3m")...)...)
	o.wants(t, code)
	o.decode(t, &r)
	if code == 0 && !r.OK() {
		t.Errorf("exit code 0 with %+v", r)
	}
	return r
}

// All drills run one after another on a run with a standby. Each drill reports its effects, no task is lost, and the job
// continues. If the ledger lacks a finish, a drill reports that and exits with 1.
func TestDrills(t *testing.T) {
	t.Parallel()
	r := startRunOf(t, 7, "--masters", "2", "--drillable", "--passes", "1000000")
	master := func(name string) bool { return strings.HasPrefix(name, "master") }
	for _, c := range []struct {
		args     []string
		victim   func(name string) bool
		takeOver bool // the drill must cause a takeover
	}{
		{[]string{drill.KillLeader}, master, true},
		{[]string{drill.PauseLeader}, master, true},
		{[]string{drill.Partition}, master, true},
		{[]string{drill.SlowStore, "--delay", "100ms", "--for", "2s"}, func(name string) bool { return strings.HasPrefix(name, "etcd") }, false},
		{[]string{drill.KillTrainer, "--trainer", "trainer-1"}, func(name string) bool { return name == "trainer-1" }, false},
		{[]string{drill.KillTrainer}, func(name string) bool { return strings.HasPrefix(name, "trainer-") }, false},
	} {
		before := r.awaitStatus("a leader", func(s *pb.StatusReply) bool { return true })
		report := drillReport(t, r.job.dir, 0, c.args...)
		if report.Drill != c.args[0] || !c.victim(report.Victim.Process) || report.StoodStill <= 0 || report.Pending == 0 && c.args[0] == drill.KillTrainer {
			t.Errorf("%v: %+v", c.args, report)
		}
		after := r.awaitStatus("the leader commits", func(s *pb.StatusReply) bool { return s.Commit > before.Commit })
		if c.takeOver && (report.TookOver == nil || report.TookOver.Term <= before.Term || !master(report.TookOver.Process) || report.TookOver.After <= 0) {
			t.Errorf("%v: expected a takeover after term %[3]d, found %+[2]v; the leader is %[4]v", c.args, report.TookOver, before.Term, after)
		}
		r.awaitRunning(7)
	}

	lost := r.loseLastOfPass(t)
	report := drillReport(t, r.job.dir, 1, drill.SlowStore, "--delay", "10ms", "--for", "1s")
	if report.OK() {
		t.Errorf("%s was deleted from the ledger: expected the drill to report it, found %+v", lost, report)
	}
}

// loseLastOfPass deletes the ledger entry with the finish of the last task of a pass, and returns its key. No later entry
// contains the outcome of that task.
func (r *runJob) loseLastOfPass(t testing.TB) (lost string) {
	t.Helper()
	eventually(t, "a pass has ended", func() (bool, string) {
		values, _, err := r.store.Prefixed(t.Context(), "/ledger/0")
		if err != nil {
			return false, err.Error()
		}
		for key, value := range values {
			last := taskqueue.EventKind(0)
			for event, err := range taskqueue.LedgerEvents(value) {
				switch {
				case err != nil:
					t.Fatal(err)
				case event.Kind == taskqueue.EventPassClosed && last == taskqueue.EventFinished:
					lost = key
				}
				last = event.Kind
			}
		}
		if lost == "" {
			return false, fmt.Sprintf("%d commits", len(values))
		}
		deleted, err := r.store.Client().Delete(t.Context(), r.store.Prefix()+lost)
		if err != nil {
			t.Fatal(err)
		}
		return deleted.Deleted == 1, lost + " is sealed"
	})
	return lost
}

// A drill finds masters that were started separately by the address of the leader.
func TestDrillOfDaemons(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	flags := []string{"--passes", "1000", "--ps", "1"}
	masters := []*process{j.master(flags...)}
	j.awaitLeader(0)
	masters = append(masters, j.master(flags...))
	masters[1].awaitLog("waiting for the lock")
	j.server()
	j.trainer("a")
	j.awaitMidPass(1)
	report := drillReport(t, j.dir, 0, j.in(drill.KillLeader)...)
	if report.Victim.PID != masters[0].pid || report.TookOver == nil || report.TookOver.Process != "master" {
		t.Errorf("found %+v, expected that process %d died and the other master took over", report, masters[0].pid)
	}
	if masters[0].wait() != -1 {
		t.Errorf("the leader ended with %v, expected a signal", masters[0].exit)
	}

	o := run(t, j.dir, append([]string{"drill"}, j.in(drill.Partition)...)...)
	o.wants(t, exitFailed, "--drillable")
	o = run(t, t.TempDir(), "drill", drill.KillLeader)
	o.wants(t, exitUsage, "no run in progress", "master run", "--endpoints")
}
