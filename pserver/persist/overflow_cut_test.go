package persist

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"trainmaster/pserver/checkpoint"
	core "trainmaster/pserver/shard"
)

// An update that is under way when a checkpoint is checked overflows before the copies are complete.
func TestCheckpointOfUpdateThatOverflowsIsRefused(t *testing.T) {
	for name, write := range map[string]func(*Checkpoints) error{
		"set": func(c *Checkpoints) error {
			_, err := c.WriteCut(context.Background(), 1, 1)
			return err
		},
		"self": func(c *Checkpoints) error { return c.SaveSelf(context.Background(), checkpoint.Stop) },
	} {
		t.Run(name, func(t *testing.T) {
			s, c := retiring(t, t.TempDir())
			c.cutLimit = time.Minute
			h := s.View()
			who, refused := join(t, s, 1, 2)
			if refused != nil {
				t.Fatal(refused)
			}
			step := uint64(0)
			overflow := func(string) error {
				for range 2 { // the second one exceeds the greatest number
					step++
					s.Push(h, h.Blocks()[0], who, core.Update{Step: step, Scale: 1}, core.Values{Floats: []float32{-math.MaxFloat32, 0, 0}}, nil)
				}
				return nil
			}
			if name == "set" {
				if _, err := c.BeginCut(1, 1, s.JobEpoch()); err != nil {
					t.Fatal(err)
				}
				if err := overflow(""); err != nil {
					t.Fatal(err)
				}
			} else {
				c.folder.Points = overflow
			}
			if err := write(c); !errors.Is(err, core.ErrOverflow) {
				t.Errorf("error %v, expected %v", err, core.ErrOverflow)
			}
			if newest, _ := c.Status(); newest != "" {
				t.Errorf("checkpoint %s was written", newest)
			}
		})
	}
}
