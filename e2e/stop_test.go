package e2e

import (
	"strings"
	"syscall"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
)

// F185: an operator stops the task of a trainer, which then continues with other tasks.
func TestOperatorStopsWhatATrainerRuns(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	master := j.master("--passes", "1", "--ps", "1")
	j.server()
	a, b := j.trainer("a", "--record-delay", "300ms"), j.trainer("b") // a task of a lasts longer than the time between two heartbeats
	eventually(t, "a runs a task that the operator stops", func() (bool, string) {
		o := run(t, j.dir, j.in("trainers", "stop", "a")...)
		return o.code == 0 && strings.Contains(o.stdout, "trainer a stops its task"), o.stdout + o.stderr
	})
	o := run(t, j.dir, j.in("trainers", "stop", "worker-9")...)
	if o.code == 0 || !strings.Contains(o.stderr, "no such trainer") {
		t.Errorf("stop of an unknown trainer: exit code %d, %s", o.code, o.stderr)
	}
	a.awaitLog("task stopped by the master")
	a.wantExit(0)
	b.wantExit(0)
	master.wantExit(0)
	j.wantVerified(1, tasksPerPass)
}

// F181: a trainer hangs during a task for longer than its timeout, while its session lasts. Another trainer receives the task. The next
// heartbeat of the former holder stops it, also under another leader, and the former holder continues with other tasks.
func TestTrainerThatHangsIsStopped(t *testing.T) {
	t.Parallel()
	const passes = 5
	j := newJob(t)
	flags := []string{"--passes", "5", "--ps", "1", "--task-timeout-min", "2s", "--session-ttl", "1h"}
	master := j.master(flags...)
	j.server()
	a, b := j.trainer("a", "--record-delay", "20ms"), j.trainer("b")
	j.awaitMidPass(2) // the first tasks of a job have a long timeout
	pass := j.stopWithTask(a, "a")
	j.awaitStatus("the pass ends without a", func(s *pb.StatusReply) bool { return s.Datasets[0].Pass > pass })
	master.kill() // no stop can have reached a
	next := j.master(flags...)
	j.awaitLeader(0)
	a.signal(syscall.SIGCONT)
	a.awaitLog("task stopped by the master")
	a.wantExit(0)
	b.wantExit(0)
	next.wantExit(0)
	j.wantVerified(passes, tasksPerPass)
	for position, counted := range j.history().finished {
		for _, d := range counted {
			if uint32(position.pass) > pass && d.trainer == "a" {
				return // it trained tasks after the stop
			}
		}
	}
	t.Errorf("a: expected finished tasks after pass %d", pass)
}
