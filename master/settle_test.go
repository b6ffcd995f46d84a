package master

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"trainmaster/taskqueue"
)

// within waits for a value in virtual time.
func within[V any](t *testing.T, what string, d time.Duration, c <-chan V) (v V) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(d):
		t.Errorf("%s: none within %v", what, d)
	}
	return v
}

// F3: a commit has an unknown outcome, and the store refuses every later write. Nothing resolves the outcome, so the
// term ends within the TTL of the lease. Callers are answered, the state can be read, and the master can be stopped.
func TestRefusalsAfterAnUnknownOutcomeEndTheTerm(t *testing.T) {
	for name, refusal := range map[string]error{
		"full store": taskqueue.ErrStoreFull,
		"refused":    errors.New("etcdserver: request is too large"),
		"unknown":    fmt.Errorf("%w: reset", taskqueue.ErrUnknownOutcome),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := newMemory()
				m, stop, ended := leads(t, store, Config{}, nil)
				register(t, m, 3)
				store.set(time.Millisecond, fmt.Errorf("%w: reset", taskqueue.ErrUnknownOutcome))
				answered := make(chan error, 1)
				go func() { _, err := m.Join(context.Background(), "a", ""); answered <- err }()
				time.Sleep(30 * time.Millisecond)
				store.set(time.Millisecond, refusal)
				if err := within(t, "answer to a join", store.TTL()+time.Second, answered); !errors.Is(err, ErrNotLeader) {
					t.Errorf("caller of an unknown outcome: got %v, expected %v", err, ErrNotLeader)
				}
				looked := make(chan error, 1)
				go func() { _, err := m.Overview(context.Background()); looked <- err }()
				within(t, "status", 2*store.TTL(), looked)
				go stop() // it waits for the end
				defer time.Sleep(time.Minute)
				defer store.set(time.Millisecond, nil) // the remaining goroutines end
				if err := within(t, "end of a stopped master", store.TTL(), ended); err != nil {
					t.Errorf("end of the master: got %v", err)
				}
			})
		})
	}
}

// A master that stops does not wait for an unknown outcome.
func TestStoppedMasterGivesUpAnUnknownOutcome(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, ended := leads(t, store, Config{}, nil)
		register(t, m, 3)
		store.set(time.Millisecond, fmt.Errorf("%w: reset", taskqueue.ErrUnknownOutcome))
		answered := make(chan error, 1)
		go func() { _, err := m.Join(context.Background(), "a", ""); answered <- err }()
		time.Sleep(30 * time.Millisecond)
		go stop() // it waits for the end
		defer time.Sleep(time.Minute)
		defer store.set(time.Millisecond, nil) // the remaining goroutines end
		within(t, "end of a stopped master", time.Second, ended)
		if err := within(t, "answer to a join", time.Second, answered); !errors.Is(err, ErrNotLeader) {
			t.Errorf("caller of an unknown outcome: got %v, expected %v", err, ErrNotLeader)
		}
	})
}

// A report that waits for the scan of another report ends with its caller.
func TestReportThatWaitsCanBeCanceled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, _, _ := leads(t, newMemory(), Config{}, nil)
		if err := m.reports.one.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer m.reports.one.Release()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.ReportDataset(ctx, []string{"/data/a"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting report: got %v, expected %v", err, context.DeadlineExceeded)
		}
	})
}
