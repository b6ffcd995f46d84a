package pserver

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"sync/atomic"

	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
)

// trainer is one incarnation of a trainer, as a shard knows it.
//
// applied[i] is guarded by the lock of block i; so is the effect of fenced, since
// fence passes through every lock after setting it.
type trainer struct {
	ordinal     uint32
	incarnation uint64
	fenced      atomic.Bool
	crowded     atomic.Pointer[crowd]
	connections atomic.Int32    // open ones
	applied     []uint64        // by local block: the last step applied
	columns     []*table.Column // by table
}

// Ordinal is the number of the trainer.
func (t *trainer) Ordinal() uint32 { return t.ordinal }

// Incarnation is the number of this start of the trainer.
func (t *trainer) Incarnation() uint64 { return t.incarnation }

// Column is what a table knows of the trainer.
func (t *trainer) Column(k int) *table.Column { return t.columns[k] }

// Connected counts a connection of the trainer, until Disconnected.
func (t *trainer) Connected() { t.connections.Add(1) }

// Disconnected ends a connection of the trainer.
func (t *trainer) Disconnected() { t.connections.Add(-1) }

// newTrainer is one that has pushed nothing.
func (h *holding) newTrainer(ordinal uint32, incarnation uint64) *trainer {
	return &trainer{ordinal: ordinal, incarnation: incarnation, applied: make([]uint64, len(h.blocks)), columns: h.newColumns()}
}

// join finds or makes the trainer of a data connection. digest is that of its placement, and epoch the epoch of the placement.
func (s *shard) join(ordinal uint32, incarnation uint64, digest [sha256.Size]byte, epoch uint32) (*trainer, *holding, *core.Refusal) {
	if text := s.unrestoredText(); text != "" {
		return nil, nil, core.Refuse(core.NotReady, "shard %d waits: %s", s.index, text)
	}
	h := s.holding.Load()
	if h == nil && s.moving.joins {
		return nil, nil, core.Refuse(core.NotReady, "shard %d does not have its placement yet", s.index)
	}
	if h == nil {
		return nil, nil, core.Refuse(core.NoParameters, "shard %d has no parameters", s.index)
	}
	if digest != h.model.Digest {
		return nil, nil, otherPlacement(s.index, epoch, h.model.Placement.Epoch)
	}
	t, refused := s.greet(h, ordinal, incarnation)
	return t, h, refused
}

// otherPlacement refuses a trainer with another digest.
func otherPlacement(shard int, theirs, ours uint32) *core.Refusal {
	switch {
	case theirs != 0 && theirs < ours:
		return core.Refuse(core.Moved, "your placement has epoch %d, shard %d is at %d", theirs, shard, ours)
	case theirs > ours:
		return core.Refuse(core.NotReady, "your placement has epoch %d, shard %d is at %d and will hear of it", theirs, shard, ours)
	}
	return core.Refuse(core.OtherModel, "the digest of your placement is not that of shard %d: another model, or another number of shards", shard)
}

// greet finds or makes the trainer for a hello. A newer incarnation fences the
// one before it; an older one is refused.
func (s *shard) greet(h *holding, ordinal uint32, incarnation uint64) (*trainer, *core.Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holding.Load() != h {
		return nil, core.Refuse(core.Moved, "blocks of shard %d were moved just now", s.index)
	}
	old := s.trainers[ordinal]
	switch {
	case old != nil && old.incarnation == incarnation:
		return old, nil
	case old != nil && old.incarnation > incarnation:
		return nil, core.Refuse(core.Fenced, "trainer %d is at incarnation %d, this is %d", ordinal, old.incarnation, incarnation)
	case s.retired.over(incarnation) && !s.told:
		return nil, core.Refuse(core.NotReady, "shard %d has not heard yet which trainers have sessions: in its checkpoint incarnation %d is over", s.index, incarnation)
	//guard:retired-trainer-refused
	case s.retired.over(incarnation):
		return nil, core.Refuse(core.Fenced, "incarnation %d of trainer %d is over: it has no session", incarnation, ordinal)
	case old != nil:
		fence(h, old)
		s.log.WithField("trainer", ordinal).WithField("incarnation", incarnation).WithField("fenced", old.incarnation).Info("trainer returned")
	}
	t := h.newTrainer(ordinal, incarnation)
	s.trainers[ordinal] = t
	return t, nil
}

// fence returns when no push of t will be applied any more: a push looks at the
// flag under its block's lock, and every lock was free once after the flag was set.
func fence(h *holding, t *trainer) {
	h.shut(t)
	for _, b := range h.blocks {
		b.mu.Lock()
		b.mu.Unlock() //nolint:staticcheck // empty on purpose: it waits for requests inside the block
	}
}

// rosterLocked lists the trainers by ordinal.
func (s *shard) rosterLocked() []*trainer {
	list := make([]*trainer, 0, len(s.trainers))
	for _, t := range s.trainers {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *trainer) int { return cmp.Compare(a.ordinal, b.ordinal) })
	return list
}
