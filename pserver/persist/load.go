package persist

import (
	"cmp"
	"fmt"
	"slices"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/model"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
)

// fillFrom takes from the checkpoints the blocks of this shard. The placement is that of the
// checkpoints, or a new one for another number of shards. It changes the shard only when
// everything could be read.
func fillFrom(s *core.Shard, parts []*checkpoint.Checkpoint, job JobState, moved *placement.Layout) error {
	man, table := parts[0].Manifest, parts[0].Share.Table
	var err error
	shards := cmp.Or(job.Shards, table.Shards)
	if moved != nil {
		table, err = moved.Apply(table)
	} else if shards != table.Shards {
		table, err = placement.New(table.Tensors, shards, table.Sparse...)
	}
	if err != nil {
		return err
	}
	m, err := model.New(man.Optimizer, man.Mode == checkpoint.Sync, table)
	if err != nil {
		return err
	}
	if m, err = m.WithStaleness(man.Staleness); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	r, slots := s.Restore(m), make([]int, len(m.Placement.Sparse))
	digest := parts[0].Share.Table.Digest()
	jobEpoch, version := uint32(0), uint64(0)
	for _, part := range parts {
		if p := part.Manifest; p.Optimizer != man.Optimizer || p.Staleness != man.Staleness || part.Share.Table.Digest() != digest {
			return fmt.Errorf("shards %d and %d have other models", man.Shard, p.Shard)
		}
		jobEpoch, version = max(jobEpoch, part.Manifest.JobEpoch), max(version, part.Manifest.Version)
		if err := takePart(r, part, slots); err != nil {
			return fmt.Errorf("checkpoint %v of shard %d: %w", part.Manifest.Generation, part.Manifest.Shard, err)
		}
		if stored := part.Manifest.Retired; stored != nil && !job.otherLife(man) { // incarnations differ within one life only
			//guard:retired-restored
			r.Retire(core.NewRetirement(stored.Job, stored.Floor, stored.Spared))
		}
	}
	if err := r.CheckComplete(); err != nil {
		return err
	}
	if err := missingSlots(r, slots); err != nil {
		return err
	}
	if job.otherLife(man) { // no trainer of that life pushes again, and the new life counts from the beginning
		r.ForgetTrainers()
		jobEpoch = max(1, job.Epoch)
	}
	return r.Install(version, jobEpoch)
}

// takePart takes what this shard holds of one checkpoint, and counts the slots by table.
func takePart(r *core.Restoration, c *checkpoint.Checkpoint, slots []int) error {
	if slices.ContainsFunc(c.Share.Blocks, func(b placement.Block) bool { return r.Holds(b.ID) }) {
		if err := loadBlocks(r, c); err != nil {
			return err
		}
	}
	roster, err := loadMarks(r, c)
	for k, t := range r.Tables() {
		if err != nil {
			break
		}
		var n int
		n, err = c.Table(k, t, roster)
		slots[k] += n
	}
	return err
}

// loadBlocks takes parameters and state of the blocks that this shard holds.
func loadBlocks(r *core.Restoration, c *checkpoint.Checkpoint) error {
	if err := c.Weights(func(_ int, b placement.Block) []float32 { return r.Params(b.ID) }); err != nil {
		return err
	}
	for slot := range c.Slots {
		if err := c.Slot(slot, func(_ int, b placement.Block) []float32 { return r.State(b.ID, slot) }); err != nil {
			return err
		}
	}
	return nil
}

// loadMarks takes the versions of the blocks that this shard holds, their numbers of updates, and what was applied of each trainer. roster are the trainers of the checkpoint, in its order.
func loadMarks(r *core.Restoration, c *checkpoint.Checkpoint) (roster []*partition.Trainer, err error) {
	marks, err := c.Marks()
	if err != nil {
		return nil, err
	}
	for _, t := range marks.Trainers {
		known := r.Trainer(t.Ordinal, t.Incarnation)
		roster = append(roster, known.Trainer)
		for i, b := range c.Share.Blocks {
			r.SetApplied(known, b.ID, t.Applied[i])
		}
	}
	for i, b := range c.Share.Blocks {
		r.SetCounts(b.ID, marks.Versions[i], marks.Updates[i])
	}
	return roster, nil
}

// missingSlots says which table has slots that were in no checkpoint, nil if none.
func missingSlots(r *core.Restoration, slots []int) error {
	for k, t := range r.Tables() {
		if slots[k] != len(t.Held()) {
			return fmt.Errorf("the checkpoints have %d of %d slots of table %q", slots[k], len(t.Held()), t.Config().Name)
		}
	}
	return nil
}
