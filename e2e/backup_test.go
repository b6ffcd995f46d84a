package e2e

import (
	"syscall"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
)

// awaitVersion waits for the given number of further synchronous steps.
func (j *job) awaitVersion(further uint64) {
	j.t.Helper()
	ready := func(d *pb.DescribeReply) bool { return d.State == pb.DescribeReply_STATE_READY && d.Version > 0 }
	from := j.awaitServer(0, "has applied a step", ready).Version
	j.awaitServer(0, "applies further steps", func(d *pb.DescribeReply) bool { return d.Version >= from+further })
}

// pausedTrainer runs a job with three synchronous trainers. It pauses one trainer during a task for 20 steps of the other
// trainers, and reports whether the session of the paused trainer ended.
func pausedTrainer(t *testing.T, args ...string) (lost bool) {
	t.Helper()
	j := newJob(t)
	master := j.master(append([]string{"--passes", "6", "--ps", "2", "--update-mode", "sync"}, args...)...)
	j.server()
	j.server()
	trainers := []*process{j.trainer("a"), j.trainer("b"), j.trainer("c")}
	j.awaitTrainer("c", "has a task", func(e *pb.TrainerEntry) bool { return e != nil && len(e.Tasks) > 0 })
	j.awaitVersion(5)
	sessions, err := j.trainers()
	if err != nil || sessions["c"] == nil {
		t.Fatalf("sessions before the pause: expected trainer c, found %v (%v)", sessions, err)
	}
	before := sessions["c"].Incarnation
	trainers[2].signal(syscall.SIGSTOP)
	j.awaitVersion(20)
	if sessions, err = j.trainers(); err != nil {
		t.Fatal(err)
	}
	lost = sessions["c"] == nil || sessions["c"].Incarnation != before
	trainers[2].signal(syscall.SIGCONT)
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	master.wantExit(0)
	j.wantExactlyOnce(6, tasksPerPass)
	j.wantAccuracy(0.90)
	return lost
}

// With a backup worker, steps continue while the session of a paused trainer lasts.
func TestBackupWorker(t *testing.T) {
	t.Parallel()
	if pausedTrainer(t, "--backup-workers", "1", "--session-ttl", "10m") {
		t.Error("expected the session of the paused trainer to last for 20 steps of the others")
	}
}

// F57: without a backup worker, no step is made until the session of a paused trainer ends. Its late gradient is in no step.
func TestPausedTrainerDelaysSteps(t *testing.T) {
	t.Parallel()
	if !pausedTrainer(t, "--session-ttl", "2s") {
		t.Error("expected no 20 steps of the others during the session of the paused trainer")
	}
}
