package master

import (
	"context"
	"testing"

	"trainmaster/taskqueue"
)

// Waiting is how many callers the committer has not looked at yet.
func (m *Master) Waiting() int { return m.current.Load().committer.len() }

// Parked is how many askers wait for a task to turn up.
func (m *Master) Parked(t testing.TB) (n int) {
	t.Helper()
	if err := m.Inspect(t.Context(), func(*taskqueue.Queue) { n = len(m.current.Load().committer.parked) }); err != nil {
		t.Fatal(err)
	}
	return n
}

// LimitState sets the size of the stored state beyond which nothing new is dispatched: with
// the real one a test would need a million pending tasks.
func (m *Master) LimitState(t testing.TB, limit int) {
	t.Helper()
	if err := m.Inspect(t.Context(), func(*taskqueue.Queue) { m.current.Load().committer.limit = limit }); err != nil {
		t.Fatal(err)
	}
}

// Inspect lets a test look at the committed queue, in the committer's own goroutine.
func (m *Master) Inspect(ctx context.Context, look func(*taskqueue.Queue)) error {
	return m.inspect(ctx, look)
}
