package e2e

import (
	"syscall"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
)

// stopWithTask stops a trainer (SIGSTOP) in the middle of a pass while it holds a task, and returns the pass.
func (j *job) stopWithTask(p *process, id string) (pass uint32) {
	j.t.Helper()
	eventually(j.t, id+" is stopped while it holds a task", func() (bool, string) {
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

// F26: a trainer killed in the middle of a task. Its tasks are given to others once its connection has been gone for the
// grace of five seconds; its session and the task would go on for an hour.
func TestKilledTrainer(t *testing.T) {
	t.Parallel()
	const passes = 3
	j := newJob(t)
	master := j.master("--passes", "3", "--ps", "1", "--task-timeout-min", "1h", "--session-ttl", "1h")
	j.server()
	a, b, c := j.trainer("a"), j.trainer("b"), j.trainer("c")
	j.stopWithTask(b, "b") // so that it cannot finish the task any more
	b.kill()
	a.wantExit(0)
	c.wantExit(0)
	master.wantExit(0)
	h := j.wantExactlyOnce(passes, tasksPerPass)
	if h.lost["b"] != 1 {
		t.Errorf("the ledger says that b was lost %d times, expected once", h.lost["b"])
	}
	j.wantPassedOn(h, "b")
}

// F30: the holder of the last task of a pass dies while the others are told to wait. They get it, and the job ends.
func TestHolderOfTheLastTaskDies(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	master := j.master("--ps", "1", "--task-timeout-min", "1h", "--session-ttl", "1h")
	j.server()
	a, b, c := j.trainer("a"), j.trainer("b"), j.trainer("c")
	j.stopWithTask(b, "b")
	j.awaitStatus("only what b holds is not done", func(s *pb.StatusReply) bool {
		sessions, err := j.trainers()
		d := s.Datasets[0]
		return err == nil && sessions["b"] != nil && d.Todo+d.Retry == 0 && d.Pending == uint64(len(sessions["b"].Tasks))
	})
	b.kill()
	a.wantExit(0)
	c.wantExit(0)
	master.wantExit(0)
	j.wantPassedOn(j.wantExactlyOnce(1, tasksPerPass), "b")
}

// wantPassedOn fails the test unless tasks were taken back from the trainer, and each was counted for another dispatch.
func (j *job) wantPassedOn(h history, id string) {
	j.t.Helper()
	n := 0
	for _, d := range h.returned {
		if d.trainer != id {
			continue
		}
		n++
		for _, counted := range h.finished[d.place] {
			if counted == d {
				j.t.Errorf("%+v was taken back, and counted all the same", d)
			}
		}
	}
	if n == 0 {
		j.t.Errorf("nothing was taken back from %s, which held a task", id)
	}
}

// A trainer that is stopped for longer than its session lasts, and goes on: it joins again, and the task that it held and
// trained to its end is not counted a second time.
func TestStoppedTrainer(t *testing.T) {
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
	j.wantPassedOn(h, "b")
}

// What is not there yet is waited for, and said: a leader, the number of parameter servers, and the servers.
func TestTrainerSaysWhatItWaitsFor(t *testing.T) {
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

// Trainers beat often enough for whatever --session-ttl says: here one trains a single task for longer, and the other one
// waits for the end of the pass for longer.
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
		t.Errorf("the trainers joined %v times, expected once each, and nothing returned; found %v", h.sessions, h.returned)
	}
}

// F23, F24: a trainer that takes longer than the task timeout. What it finishes before its task is given to another one
// counts; what the other one finished first is not counted again, in the same session and the same pass.
func TestSlowTrainer(t *testing.T) {
	t.Parallel()
	const passes = 4
	j := newJob(t)
	master := j.master("--passes", "4", "--ps", "1", "--task-timeout-min", "200ms", "--task-max-failures", "1000")
	j.server()
	fast := j.trainer("fast")
	j.awaitMidPass(1) // before the first finish a task is given ten minutes
	slow := j.trainer("slow", "--record-delay", "30ms")
	fast.wantExit(0)
	slow.wantExit(0)
	master.wantExit(0)
	h := j.wantExactlyOnce(passes, tasksPerPass)
	inVain := 0
	for d := range j.trained() {
		if counted := h.finished[d.place]; d.trainer == "slow" && len(counted) == 1 && counted[0].trainer == "fast" {
			inVain++
		}
	}
	if inVain == 0 {
		t.Error("slow trained nothing that fast had finished before: expected tasks that were finished twice, and counted once")
	}
}

// F33: every trainer dies while the master stays. Nothing is lost when others come.
func TestEveryTrainerDies(t *testing.T) {
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
		j.awaitTrainer(id, "has no session any more", func(e *pb.TrainerEntry) bool { return e == nil })
	}
	second := []*process{j.trainer("a"), j.trainer("c")}
	for _, p := range second {
		p.wantExit(0)
	}
	master.wantExit(0)
	j.wantExactlyOnce(passes, tasksPerPass)
}

// A trainer that is told to stop leaves in order: what it holds goes back at once, uncharged, and it is no failure.
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
		t.Error("b left in order, and the ledger says that it was lost")
	}
}

// Two trainers with one --id take the session from each other, again and again: one ends and says why, the other goes on.
func TestTrainersOfOneName(t *testing.T) {
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
	j.wantVerified(passes, tasksPerPass) // the ledger names nobody for what a session finishes that is lost already
}
