package persist

import (
	"cmp"
	"fmt"

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
			r.Retire(core.Retirement(*stored))
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
	images, err := readBlocks(r, c)
	if err != nil {
		return err
	}
	marks, err := c.Marks()
	if err != nil {
		return err
	}
	roster := make([]*partition.Trainer, len(marks.Trainers))
	for k, t := range marks.Trainers {
		roster[k] = r.Trainer(t.Ordinal, t.Incarnation).Trainer
	}
	for i, image := range images {
		image.Version, image.Updates = marks.Versions[i], marks.Updates[i]
		for _, t := range marks.Trainers {
			image.Applied = append(image.Applied, t.Applied[i])
		}
		if err := r.Put(c.Share.Blocks[i].ID, image, roster); err != nil {
			return err
		}
	}
	for k, t := range r.Tables() {
		n, err := c.Table(k, t, roster)
		if err != nil {
			return err
		}
		slots[k] += n
	}
	return nil
}

// readBlocks reads parameters and state of the blocks that this shard holds, by index in the share of the checkpoint.
func readBlocks(r *core.Restoration, c *checkpoint.Checkpoint) (map[int]*core.Image, error) {
	images := map[int]*core.Image{}
	for i, b := range c.Share.Blocks {
		if r.Holds(b.ID) {
			images[i] = &core.Image{Params: make([]float32, b.Len), State: make([]float32, len(c.Slots)*b.Len)}
		}
	}
	read := func(from func(func(int, placement.Block) []float32) error, part func(*core.Image, int) []float32) error {
		return from(func(i int, b placement.Block) []float32 {
			if images[i] == nil {
				return nil
			}
			return part(images[i], b.Len)
		})
	}
	if len(images) == 0 {
		return nil, nil
	}
	err := read(c.Weights, func(i *core.Image, _ int) []float32 { return i.Params })
	for slot := 0; err == nil && slot < len(c.Slots); slot++ {
		err = read(func(into func(int, placement.Block) []float32) error { return c.Slot(slot, into) },
			func(i *core.Image, n int) []float32 { return i.State[slot*n : (slot+1)*n] })
	}
	return images, err
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
