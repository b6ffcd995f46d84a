package e2e

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trainmaster/internal/freeport"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/scripts/prepared"
)

// F170, F230: a trainer in Python, made from the .proto files alone, trains a job over gRPC while its leader is killed, hangs, or steps down and
// continues as a standby. The options of its channel find the next leader: the health check, the retries, and the ping that a hung leader
// does not answer. Without the timeout of the ping, it would wait for a minute.
func TestPythonTrainer(t *testing.T) {
	for name, fault := range map[string]func(t *testing.T, j *job, leader *process){
		"killed":       func(_ *testing.T, _ *job, leader *process) { leader.kill() },
		"hung":         func(_ *testing.T, _ *job, leader *process) { leader.signal(syscall.SIGSTOP) },
		"stepped down": func(t *testing.T, j *job, _ *process) { j.takeLock(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const passes, soon = 8, 30 * time.Second
			prepared.Python(t)
			j := newJob(t)
			var addrs []string
			for range 3 {
				addr, err := freeport.Addr("127.0.0.1")
				if err != nil {
					t.Fatal(err)
				}
				addrs = append(addrs, addr)
			}
			leader := j.master("--passes", "8", "--listen", addrs[0])
			term := j.awaitLeader(0)
			standby := j.master("--passes", "8", "--listen", addrs[1])
			start(t, "dataproxy", j.dir, "dataproxy", "--listen", addrs[2], "--data-roots", j.dir)
			var output output
			trainer := pythonCommand(t.Context(), t, "../examples/coordinator/trainer.py", "--masters", strings.Join(addrs[:2], ","), "--data-proxy", addrs[2],
				"--data", filepath.Join(j.dir, "data", "digits-0*"))
			trainer.Stdout, trainer.Stderr = &output, &output
			if err := trainer.Start(); err != nil {
				t.Fatal(err)
			}
			exited := make(chan error, 1)
			go func() { exited <- trainer.Wait() }()
			j.awaitMidPass(2)
			began := time.Now()
			fault(t, j, leader)
			j.awaitLeader(term)
			at := doneOf(j.awaitStatus("the next leader has the dataset", func(s *pb.StatusReply) bool { return len(s.Datasets) > 0 }))
			j.awaitStatus("a task finishes at the next leader", func(s *pb.StatusReply) bool {
				if err := exitOf(exited); err != nil {
					t.Fatalf("trainer: %v\n%s", err, output.String())
				}
				return len(s.Datasets) > 0 && doneOf(s) > at
			})
			if took := time.Since(began); took > soon {
				t.Errorf("the trainer found the next leader in %v, expected at most %v", took, soon)
			} else {
				t.Logf("the trainer found the next leader in %v", took)
			}
			if err := <-exited; err != nil || !strings.Contains(output.String(), "REASON_PASSES_DONE") {
				t.Errorf("trainer: %v\n%s", err, output.String())
			}
			standby.wantExit(0)
			j.wantVerified(passes, tasksPerPass)
		})
	}
}

// exitOf returns the error of a process that has failed; nil: it runs, or has succeeded.
func exitOf(exited chan error) error {
	select {
	case err := <-exited:
		exited <- err
		return err
	default:
		return nil
	}
}

// doneOf returns the number of tasks that are done in all passes.
func doneOf(s *pb.StatusReply) uint64 {
	d := s.Datasets[0]
	return uint64(d.Pass)*d.Tasks + d.Done
}

// takeLock deletes the lock of the leader. Its process continues as a standby.
func (j *job) takeLock(t *testing.T) {
	t.Helper()
	leader, err := j.store.MasterAddr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bids, _, err := j.store.Prefixed(t.Context(), "/master/lock/")
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range bids {
		if strings.Contains(string(value), leader.Addr) {
			if _, err := j.store.Client().Delete(t.Context(), j.store.Prefix()+key); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("lock of %s: expected a key, found %v", leader.Addr, bids)
}
