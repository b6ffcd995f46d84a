package master

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
)

// A deterministic step waits for the configured number of trainers, and logs a warning when the wait is long.
func TestDeterministicStepWaitsForAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var shards stepRecorder
		m, _, _ := leads(t, newMemory(), synchronous(Config{Deterministic: true, Trainers: 2}), &shards)
		said := logtest.NewLocal(m.config.Log.Logger)
		register(t, m, 4)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a, b := memberOf(t, m, "a"), memberOf(t, m, "b")
		b.sendHeartbeats(ctx, true)
		if !a.next() {
			t.Fatal("expected a task")
		}
		a.sendHeartbeats(ctx, true)
		if c, included, err := m.Staged(ctx, a.Ordinal, a.Incarnation, 0, 5, 0); err != nil || c != 0 || included {
			t.Fatalf("without the second trainer: expected no step, got %d, %v, %v", c, included, err)
		}
		time.Sleep(2 * 10 * time.Second)
		warned := 0
		for _, e := range said.AllEntries() {
			if e.Data["expected"] == 2 && e.Data["running"] == 1 {
				warned++
			}
		}
		if warned < 1 || warned > 3 {
			t.Errorf("warnings of a missing trainer: found %d in 30 s, expected one every 10 s", warned)
		}
		if !b.next() {
			t.Fatal("expected a task")
		}
		if c, included, err := m.Staged(ctx, b.Ordinal, b.Incarnation, 0, 5, 0); err != nil || c != 1 || !included {
			t.Fatalf("with both trainers: got %d, %v, %v", c, included, err)
		}
		synctest.Wait()
		if step := shards.steps()[0]; len(step.Contributors) != 2 {
			t.Errorf("step: found the contributors %v", step.Contributors)
		}
	})
}
