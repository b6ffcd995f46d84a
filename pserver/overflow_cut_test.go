package pserver

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"trainmaster/pserver/checkpoint"
)

// An update that is under way when a checkpoint is checked overflows before the copies are complete.
func TestCheckpointOfUpdateThatOverflowsIsRefused(t *testing.T) {
	for name, write := range map[string]func(*checkpoints) error{
		"set": func(c *checkpoints) error {
			_, err := c.writeCut(context.Background(), 1, 1)
			return err
		},
		"self": func(c *checkpoints) error { return c.saveSelf(context.Background(), checkpoint.Stop) },
	} {
		t.Run(name, func(t *testing.T) {
			s, c := retiring(t, t.TempDir())
			c.cutLimit = time.Minute
			b := s.holding.Load().blocks[0]
			overflow := func(string) error {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.params[0] = float32(math.Inf(1))
				s.seeBlock(b, 0, b.Len, false, nil, "version", 7)
				return nil
			}
			if name == "set" {
				if _, err := c.beginCut(1, 1, s.jobEpoch.Load()); err != nil {
					t.Fatal(err)
				}
				if err := overflow(""); err != nil {
					t.Fatal(err)
				}
			} else {
				c.folder.Points = overflow
			}
			if err := write(c); !errors.Is(err, errOverflow) {
				t.Errorf("error %v, expected %v", err, errOverflow)
			}
			if newest, _ := c.status(); newest != "" {
				t.Errorf("checkpoint %s was written", newest)
			}
		})
	}
}
