package shard

import "slices"

// Trainers are the known trainers by ordinal, the newest incarnation of each.
func (s *Shard) Trainers() []*Trainer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rosterLocked()
}

// HasCutRoom reports whether each block has the memory of a copy for a cut.
func (h *View) HasCutRoom() bool {
	return !slices.ContainsFunc(h.blocks, func(b *Block) bool {
		b.Lock()
		defer b.Unlock()
		return b.spare == nil
	})
}

// Inspect calls see with the parameters of the block, its version and the last step of a trainer, under the lock of the block. t can
// be nil.
func (b *Block) Inspect(t *Trainer, see func(params []float32, version, applied uint64)) {
	b.Lock()
	defer b.Unlock()
	applied := uint64(0)
	if t != nil {
		applied = b.Step(t.Trainer)
	}
	see(b.params, b.version, applied)
}
