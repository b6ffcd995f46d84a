package e2e

import (
	"syscall"
	"testing"
	"time"

	pb "trainmaster/proto/trainmaster/v1"
)

// The master is killed repeatedly during passes. Trainers continue without an error, and no task is lost or counted twice.
func TestKilledMaster(t *testing.T) {
	for _, mode := range []string{"async", "sync"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const passes = 6
			j := newJob(t)
			flags := []string{"--passes", "6", "--update-mode", mode, "--ps", "2"}
			master := j.master(flags...)
			j.server()
			j.server()
			trainers := []*process{j.trainer("a"), j.trainer("b"), j.trainer("c")}
			term := j.awaitLeader(0)
			for _, pass := range []uint32{1, 2, 4} {
				j.awaitMidPass(pass)
				master.kill()
				master = j.master(flags...)
				term = j.awaitLeader(term)
			}
			for _, trainer := range trainers {
				trainer.wantExit(0)
			}
			master.wantExit(0)
			h := j.wantExactlyOnce(passes, tasksPerPass)
			for id, n := range h.sessions {
				if n != 1 {
					t.Errorf("trainer %s joined %d times, expected once: its session outlives the masters", id, n)
				}
			}
			j.wantAccuracy(0.90)
		})
	}
}

// F16: a master that is stopped during a pass resigns. The standby leads long before the lease would have expired.
func TestStoppedMasterHandsOver(t *testing.T) {
	t.Parallel()
	const passes = 4
	j := newJob(t)
	flags := []string{"--passes", "4", "--ps", "1", "--lease-ttl", "60s"}
	first := j.master(flags...)
	term := j.awaitLeader(0)
	j.server()
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	second := j.master(flags...)
	second.awaitLog("waiting for the lock")
	j.awaitMidPass(2)
	began := time.Now()
	first.signal(syscall.SIGTERM)
	first.wantExit(0)
	j.awaitLeader(term)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the next master led %v after SIGTERM, expected at most 20s", took)
	}
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	second.wantExit(0)
	j.wantExactlyOnce(passes, tasksPerPass)
}

// A master that is stopped without a standby deletes its lock. The next master does not wait for a lease.
func TestStoppedMasterLeavesNoLock(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	flags := []string{"--lease-ttl", "60s"}
	master := j.master(flags...)
	j.awaitLeader(0)
	master.signal(syscall.SIGTERM)
	master.wantExit(0)
	for _, prefix := range []string{"/master/lock/", "/master/addr"} {
		if left, _, err := j.store.Prefixed(t.Context(), prefix); err != nil || len(left) > 0 {
			t.Errorf("under %s: expected nothing, found %v (%v)", prefix, left, err)
		}
	}
	j.master(flags...)
	began := time.Now()
	j.awaitStatus("the next master leads", func(s *pb.StatusReply) bool { return s.Status == pb.JobStatus_JOB_STATUS_RUNNING })
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the next master led after %v, expected at most 20s", took)
	}
}
