package persist

import (
	"cmp"
	"context"
	"testing"
	"time"

	"trainmaster/pserver/checkpoint"
)

// savePart writes the shard's part of another set, and removes its earlier parts.
func savePart(ctx context.Context, c *Checkpoints) (checkpoint.Part, error) {
	c.cutLimit = cmp.Or(c.cutLimit, time.Hour)
	number := c.lastCut.Load() + 1
	if _, err := c.BeginCut(number, 1, c.shard.JobEpoch()); err != nil {
		return checkpoint.Part{}, err
	}
	part, err := c.WriteCut(ctx, number, 1)
	if err != nil {
		return part, err
	}
	if err := c.folder.PruneTo(ctx, []checkpoint.Generation{part.Generation}); err != nil {
		return part, err
	}
	return part, c.removeSegments(ctx)
}

// saveSet writes a set of a model with one shard, and returns its text.
func saveSet(t testing.TB, c *Checkpoints) []byte {
	t.Helper()
	part, err := savePart(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	set := &checkpoint.Set{Job: "test", Number: c.lastCut.Load(), Mode: c.shard.View().Model().Mode(), JobEpoch: c.shard.JobEpoch(), Shards: []checkpoint.Part{part}}
	text, err := set.Encode()
	if err == nil {
		err = c.WriteSet(t.Context(), set.Number, 1, text, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// loadPart fills the shard from its newest part alone, and reports whether there is one.
func loadPart(ctx context.Context, c *Checkpoints, job JobState) (bool, error) {
	generations, err := c.folder.Generations(ctx)
	if err != nil {
		return false, err
	}
	for _, g := range generations {
		if whole, err := c.folder.Whole(ctx, g); err != nil || !whole {
			continue
		}
		layout, err := job.Layout()
		if err != nil {
			return false, err
		}
		part, err := c.folder.Open(ctx, g)
		if err == nil {
			err = fillFrom(c.shard, []*checkpoint.Checkpoint{part}, job, layout)
		}
		if err != nil {
			err = unusable("part "+g.String(), err, "restore the file")
		}
		return true, err
	}
	return false, nil
}
