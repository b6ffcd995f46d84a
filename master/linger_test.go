package master

import (
	"context"
	"errors"
	"testing"
	"time"

	"trainmaster/taskqueue"
)

// A trainer joins again while the master of a failed job waits for its trainers. It learns the failure, and the wait does not begin again:
// the master ends after the linger of the failure, also if trainers join until then.
func TestTrainerThatJoinsDuringTheLingerOfAFailedJobEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, _, ended := leads(t, newMemory(), Config{Queue: taskqueue.Options{Passes: 1}, Linger: 30 * time.Second}, nil)
		register(t, m, 2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		silent := joins(t, m, "silent")
		silent.sendHeartbeats(ctx, false) // the master waits for it
		a := joins(t, m, "a")
		if !a.next() {
			t.Fatal("expected a task")
		}
		if _, err := m.current.Load().Submit(ctx, &taskqueue.Fail{Reason: "planted"}); err != nil {
			t.Fatal(err)
		}
		failed := time.Now()
		for range 5 {
			time.Sleep(5 * time.Second) // virtual time
			again, err := m.Join(ctx, "a", "")
			if err != nil {
				if errors.Is(err, ErrJobFailed) {
					continue
				}
				t.Fatalf("join after the failure: %v", err)
			}
			request := &taskqueue.Request{Trainer: again.Ordinal, Incarnation: again.Incarnation, Seq: 1, Ack: 1, Want: true}
			if reply, err := m.Next(ctx, request); !errors.Is(err, ErrJobFailed) {
				t.Errorf("request after the failure: expected %v, found %+v, %v", ErrJobFailed, reply, err)
			}
			if _, err := m.Heartbeat(ctx, &taskqueue.Heartbeat{Trainer: again.Ordinal, Incarnation: again.Incarnation}); !errors.Is(err, ErrJobFailed) {
				t.Errorf("heartbeat after the failure: expected %v, found %v", ErrJobFailed, err)
			}
		}
		if err := <-ended; !errors.Is(err, ErrJobFailed) {
			t.Errorf("end of the master: expected %v, found %v", ErrJobFailed, err)
		}
		if waited := time.Since(failed); !about(waited, 30*time.Second) {
			t.Errorf("end of the master: expected 30 s after the failure, found %v", waited)
		}
	})
}
