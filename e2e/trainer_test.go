package e2e

import (
	"syscall"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
)

// stopWithTask pauses a trainer (SIGSTOP) during a pass while it holds a task, and returns the pass.
func (j *job) stopWithTask(p *process, id string) (pass uint32) {
	j.t.Helper()
	eventually(j.t, id+" is paused while it holds a task", func() (bool, string) {
		pass = j.awaitMidPass(1).Datasets[0].Pass
		p.signal(syscall.SIGSTOP)
		sessions, err := j.trainers()
		if err == nil && sessions[id] != nil && len(sessions[id].Tasks) > 0 {
			return true, ""
		}
		p.signal(syscall.SIGCONT)
		return false, sessions[id].String()
	})
	return pass
}

// F26: a trainer is killed during a task. Its tasks are dispatched to other trainers after the grace period of five seconds,
// although its session and the task timeout would last for an hour.
func TestKilledTrainer(t *testing.T) {
	for _, protocol := range []string{"grpc", "netrpc"} {
		t.Run(protocol, func(t *testing.T) { testKilledTrainer(t, protocol) })
	}
}

func testKilledTrainer(t *testing.T, protocol string) {
	t.Parallel()
	const passes = 3
	j := newJob(t)
	master := j.master("--passes", "3", "--ps", "1", "--task-timeout-min", "1h", "--session-ttl", "1h")
	j.server()
	a, b, c := j.trainer("a", "--protocol", protocol), j.trainer("b", "--protocol", protocol), j.trainer("c", "--protocol", protocol)
	j.stopWithTask(b, "b") // it must not finish the task
	b.kill()
	a.wantExit(0)
	c.wantExit(0)
	master.wantExit(0)
	h := j.wantExactlyOnce(passes, tasksPerPass)
	if h.lost["b"] != 1 {
		t.Errorf("b was lost %d times, expected once", h.lost["b"])
	}
	j.wantReassigned(h, "b")
}

// F30: the holder of the last task of a pass dies while the other trainers wait. The task is dispatched to one of them.
func TestLastTaskOfDeadTrainerIsDispatchedAgain(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	master := j.master("--ps", "1", "--task-timeout-min", "1h", "--session-ttl", "1h")
	j.server()
	a, b, c := j.trainer("a"), j.trainer("b"), j.trainer("c")
	j.stopWithTask(b, "b")
	j.awaitStatus("all tasks are done except the tasks of b", func(s *pb.StatusReply) bool {
		sessions, err := j.trainers()
		d := s.Datasets[0]
		return err == nil && sessions["b"] != nil && d.Todo+d.Retry == 0 && d.Pending == uint64(len(sessions["b"].Tasks))
	})
	b.kill()
	a.wantExit(0)
	c.wantExit(0)
	master.wantExit(0)
	j.wantReassigned(j.wantExactlyOnce(1, tasksPerPass), "b")
}

// wantReassigned fails the test unless tasks were taken back from the trainer, and another attempt of each was counted.
func (j *job) wantReassigned(h history, id string) {
	j.t.Helper()
	n := 0
	for _, d := range h.returned {
		if d.trainer != id {
			continue
		}
		n++
		for _, counted := range h.finished[d.taskPosition] {
			if counted == d {
				j.t.Errorf("%+v was taken back and counted", d)
			}
		}
	}
	if n == 0 {
		j.t.Errorf("expected a task that was taken back from %s, found none", id)
	}
}

// A trainer is paused for longer than its session. After that it joins again, and its finish of the old task is not counted a
// second time.
func TestPausedTrainerJoinsAgain(t *testing.T) {
	t.Parallel()
	const passes = 8
	j := newJob(t)
	master := j.master("--passes", "8", "--ps", "1", "--session-ttl", "3s")
	j.server()
	a, b := j.trainer("a"), j.trainer("b")
	pass := j.stopWithTask(b, "b")
	j.awaitStatus("the pass ends without b", func(s *pb.StatusReply) bool { return s.Datasets[0].Pass > pass })
	b.signal(syscall.SIGCONT)
	a.wantExit(0)
	b.wantExit(0)
	master.wantExit(0)
	h := j.wantExactlyOnce(passes, tasksPerPass)
	if h.sessions["b"] != 2 || h.sessions["a"] != 1 {
		t.Errorf("a joined %d times and b %d times, expected once and twice", h.sessions["a"], h.sessions["b"])
	}
	j.wantReassigned(h, "b")
}

// A trainer waits for a leader, for the number of parameter servers, and for the servers, and logs each of them.
func TestTrainerLogsMissingComponents(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	trainer := j.trainer("a")
	trainer.awaitLog("waiting for a master to lead")
	master := j.master()
	trainer.awaitLog("no master has said how many there are; start the master with --ps N")
	master.kill()
	master = j.master("--ps", "2")
	trainer.awaitLog(`missing="[0 1]"`)
	j.server()
	trainer.awaitLog(`missing="[1]"`)
	j.server()
	trainer.wantExit(0)
	master.wantExit(0)
	j.wantExactlyOnce(1, tasksPerPass)
}

// Trainers send heartbeats often enough for a short --session-ttl. One trainer trains a task for longer than the session, and
// the other trainer waits for longer.
func TestShortSession(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	master := j.master("--ps", "1", "--session-ttl", "2s")
	j.server()
	slow := j.trainer("slow", "--record-delay", "150ms")
	j.awaitTrainer("slow", "has a task", func(e *pb.TrainerEntry) bool { return e != nil && len(e.Tasks) > 0 })
	fast := j.trainer("fast")
	slow.wantExit(0)
	fast.wantExit(0)
	master.wantExit(0)
	h := j.wantExactlyOnce(1, tasksPerPass)
	if h.sessions["slow"] != 1 || h.sessions["fast"] != 1 || len(h.returned) > 0 {
		t.Errorf("joins: %v, returned: %v; expected one join each and nothing returned", h.sessions, h.returned)
	}
}

// F23, F24: a trainer takes longer than the task timeout. Its finish counts if no other attempt was counted before. Otherwise
// it is not counted again, in the same session and the same pass.
func TestSlowTrainer(t *testing.T) {
	t.Parallel()
	const passes = 4
	j := newJob(t)
	master := j.master("--passes", "4", "--ps", "1", "--task-timeout-min", "200ms", "--task-timeout-max", "500ms", "--task-max-failures", "1000")
	j.server()
	fast := j.trainer("fast", "--record-delay", "1ms")
	j.awaitMidPass(1) // before the first finish, the timeout is ten minutes
	slow := j.trainer("slow", "--record-delay", "100ms")
	fast.wantExit(0)
	slow.wantExit(0)
	master.wantExit(0)
	h := j.wantExactlyOnce(passes, tasksPerPass)
	duplicates := 0
	for d := range j.trained() {
		if counted := h.finished[d.taskPosition]; d.trainer == "slow" && len(counted) == 1 && counted[0].trainer == "fast" {
			duplicates++
		}
	}
	if duplicates == 0 {
		t.Error("expected tasks that both trainers finished, found none")
	}
}

// F33: all trainers die while the master runs. New trainers complete the job.
func TestAllTrainersReplaced(t *testing.T) {
	t.Parallel()
	const passes = 3
	j := newJob(t)
	master := j.master("--passes", "3", "--ps", "1")
	j.server()
	first := []*process{j.trainer("a"), j.trainer("b")}
	j.awaitMidPass(2)
	for _, p := range first {
		p.kill()
	}
	for _, id := range []string{"a", "b"} {
		j.awaitTrainer(id, "has lost its session", func(e *pb.TrainerEntry) bool { return e == nil })
	}
	second := []*process{j.trainer("a"), j.trainer("c")}
	for _, p := range second {
		p.wantExit(0)
	}
	master.wantExit(0)
	j.wantExactlyOnce(passes, tasksPerPass)
}

// A trainer that receives SIGTERM leaves. Its tasks are returned immediately and without a failure.
func TestLeavingTrainer(t *testing.T) {
	t.Parallel()
	const passes = 3
	j := newJob(t)
	master := j.master("--passes", "3", "--ps", "1", "--session-ttl", "1h", "--task-timeout-min", "1h")
	j.server()
	a, b := j.trainer("a"), j.trainer("b")
	j.awaitMidPass(1)
	b.signal(syscall.SIGTERM)
	b.wantExit(0)
	a.wantExit(0)
	master.wantExit(0)
	h := j.wantExactlyOnce(passes, tasksPerPass)
	if h.lost["b"] != 0 {
		t.Error("b left: expected no lost session in the ledger")
	}
}

// Two trainers with one --id end each other's sessions. One trainer exits with the reason, and the other continues.
func TestTrainersWithTheSameName(t *testing.T) {
	t.Parallel()
	const passes = 4
	j := newJob(t)
	master := j.master("--passes", "4", "--ps", "1")
	j.server()
	loser, winner := j.trainer("twin"), j.trainer("twin")
	select {
	case <-loser.gone:
	case <-winner.gone:
		loser, winner = winner, loser
	}
	loser.wantExit(exitFailed)
	loser.awaitLog(`another trainer runs under the same name, "twin"`)
	master.awaitLog("trainers with the same name displace each other")
	winner.wantExit(0)
	master.wantExit(0)
	j.wantVerified(passes, tasksPerPass) // a finish of a lost session names no trainer in the ledger
}
