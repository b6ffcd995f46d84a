package master

import (
	"context"
	"testing"

	"trainmaster/taskqueue"
)

// Waiting returns the number of requests in the inbox of the committer.
func (m *Master) Waiting() int { return m.current.Load().Committer.Waiting() }

// Parked returns the number of parked requests for a task.
func (m *Master) Parked(t testing.TB) (n int) {
	t.Helper()
	if err := m.Inspect(t.Context(), func(*taskqueue.Queue) { n = m.current.Load().Committer.Parked() }); err != nil {
		t.Fatal(err)
	}
	return n
}

// LimitState sets the size of the stored state above which no task is dispatched. With the real size a test would
// need a million pending tasks.
func (m *Master) LimitState(t testing.TB, limit int) {
	t.Helper()
	if err := m.Inspect(t.Context(), func(*taskqueue.Queue) { m.current.Load().Committer.LimitState(limit) }); err != nil {
		t.Fatal(err)
	}
}

// Inspect calls look with the committed queue in the goroutine of the committer.
func (m *Master) Inspect(ctx context.Context, look func(*taskqueue.Queue)) error {
	return m.inspect(ctx, look)
}
