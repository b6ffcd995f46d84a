package master

import (
	"context"
	"errors"
	"testing"
	"time"

	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// etcd answers reads and renews the lease, but answers no write of a table's parts: the term ends within its bound, and nobody
// waits any longer.
func TestPartsOfUnknownOutcomeEndTheTerm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, ended := leads(t, store, Config{}, nil)
		reported := hangAtParts(t, store, m)
		began := time.Now()
		joined := make(chan error, 1)
		go func() {
			_, err := m.Join(context.Background(), "a", "")
			joined <- err
		}()
		if err := within(t, "answer to a join", 2*store.TTL(), joined); err != nil && !errors.Is(err, ErrNotLeader) {
			t.Error(err)
		}
		if err := within(t, "answer to the report", 2*store.TTL(), reported); !errors.Is(err, ErrNotLeader) {
			t.Errorf("the report: %v, expected %v", err, ErrNotLeader)
		}
		if took := time.Since(began); took < store.TTL()/2 {
			t.Errorf("the term ended after %v, expected %v", took, store.TTL())
		}
		stop()
		within(t, "end of a stopped master", 2*store.TTL(), ended)
	})
}

// A master that stops does not wait for the parts of a table.
func TestStoppedMasterGivesUpParts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, ended := leads(t, store, Config{}, nil)
		reported := hangAtParts(t, store, m)
		stop()
		within(t, "end of a stopped master", time.Second, ended)
		if err := within(t, "answer to the report", time.Second, reported); err == nil {
			t.Error("the report succeeded")
		}
	})
}

// hangAtParts reports a dataset whose parts get no answer.
func hangAtParts(t *testing.T, store *memory, m *Master) (reported <-chan error) {
	t.Helper()
	store.mu.Lock()
	store.partsHang = true
	store.mu.Unlock()
	table := taskqueue.NewTable(1)
	if err := table.Add(taskqueue.File{Path: "/data/a", Size: 100}, []recordio.Index{{Size: 10, Records: 1}}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- m.Register(context.Background(), table, [32]byte{1}) }()
	time.Sleep(30 * time.Millisecond) // on the clock of the bubble: until the committer writes the parts
	return done
}
