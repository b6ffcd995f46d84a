package e2e

import (
	"syscall"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
)

// awaitVersion waits until the parameters are some synchronous steps further than now.
func (j *job) awaitVersion(further uint64) {
	j.t.Helper()
	ready := func(d *pb.DescribeReply) bool { return d.State == pb.DescribeReply_STATE_READY && d.Version > 0 }
	from := j.awaitServer(0, "has made a step", ready).Version
	j.awaitServer(0, "goes on", func(d *pb.DescribeReply) bool { return d.Version >= from+further })
}

// pausedTrainer pauses one of three synchronous trainers in the middle of its task until the others have made some steps,
// and says whether its session was over by then.
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
		t.Fatalf("the sessions before the pause: %v, %v", sessions, err)
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

// With a backup the steps go on at once when a trainer stands still: its session is there all the while.
func TestBackupWorker(t *testing.T) {
	t.Parallel()
	if pausedTrainer(t, "--backup-workers", "1", "--session-ttl", "1m") {
		t.Error("the session of the paused trainer ended before the others had made 20 steps")
	}
}

// F57: without one the steps stand still until its session ends, and then go on; its late gradient is in none.
func TestPausedTrainerHoldsStepsUp(t *testing.T) {
	t.Parallel()
	if !pausedTrainer(t, "--session-ttl", "2s") {
		t.Error("the others made 20 steps without the paused trainer, whose session goes on")
	}
}
