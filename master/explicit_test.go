package master

import (
	"testing"

	"trainmaster/taskqueue"
)

// Which step to load is said after a fenced write, also when nothing changes by it: a deposed master, who may not have
// heard of the last commit, says nothing.
func TestStepsAreAnsweredAfterAWrite(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, _ := leads(t, store, Config{Queue: taskqueue.Options{ExplicitCommit: true}}, nil)
		defer stop()
		joined, err := m.Join(t.Context(), "a", "")
		if err != nil {
			t.Fatal(err)
		}
		ask := func() (writes int) {
			before := len(store.written())
			if place, _, err := m.LastStep(t.Context(), &taskqueue.LastStep{Trainer: joined.Ordinal, Incarnation: joined.Incarnation}); err != nil || place.Step != 0 {
				t.Fatalf("step %d, %v", place.Step, err)
			}
			return len(store.written()) - before
		}
		ask() // makes it a member
		if writes := ask(); writes != 1 {
			t.Errorf("asked again, it was told after %d writes, expected 1", writes)
		}
	})
}
