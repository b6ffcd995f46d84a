package master

import (
	"testing"

	"trainmaster/taskqueue"
)

// The step to load is answered after a fenced write, also if the state is unchanged. A former leader may have missed
// the last commit and must not answer.
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
		ask() // makes the trainer a member
		if writes := ask(); writes != 1 {
			t.Errorf("repeated request: found %d writes before the answer, expected 1", writes)
		}
	})
}
