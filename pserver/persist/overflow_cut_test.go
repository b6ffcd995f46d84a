package persist

import (
	"errors"
	"math"
	"testing"
	"time"

	core "trainmaster/pserver/shard"
)

// An update that is under way when a checkpoint is checked overflows before the copies are complete.
func TestCheckpointOfUpdateThatOverflowsIsRefused(t *testing.T) {
	s, c := retiring(t, t.TempDir())
	c.cutLimit = time.Minute
	h := s.View()
	who, refused := join(t, s, 1, 2)
	if refused != nil {
		t.Fatal(refused)
	}
	if _, err := c.BeginCut(1, 1, s.JobEpoch()); err != nil {
		t.Fatal(err)
	}
	for step := range uint64(2) { // the second one exceeds the greatest number
		s.Push(h, h.Blocks()[0], who, core.Update{Step: step + 1, Scale: 1}, core.Values{Floats: []float32{-math.MaxFloat32, 0, 0}}, nil)
	}
	if _, err := c.WriteCut(t.Context(), 1, 1); !errors.Is(err, core.ErrOverflow) {
		t.Errorf("error %v, expected %v", err, core.ErrOverflow)
	}
	if newest, _ := c.Status(); newest != "" {
		t.Errorf("checkpoint %s was written", newest)
	}
}
