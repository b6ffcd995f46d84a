package shard

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"sync/atomic"

	"trainmaster/pserver/table"
)

// Trainer is one incarnation of a trainer, as a shard knows it.
//
// applied[i] is guarded by the lock of block i; so is the effect of fenced, since
// fence passes through every lock after setting it.
type Trainer struct {
	ordinal     uint32
	incarnation uint64
	fenced      atomic.Bool
	crowded     atomic.Pointer[crowd]
	connections atomic.Int32    // open ones
	applied     []uint64        // by local block: the last step applied
	columns     []*table.Column // by table
}

// Ordinal is the number of the trainer.
func (t *Trainer) Ordinal() uint32 { return t.ordinal }

// Incarnation is the number of this start of the trainer.
func (t *Trainer) Incarnation() uint64 { return t.incarnation }

// Column is what a table knows of the trainer.
func (t *Trainer) Column(k int) *table.Column { return t.columns[k] }

// Connected counts a connection of the trainer, until Disconnected.
func (t *Trainer) Connected() { t.connections.Add(1) }

// Disconnected ends a connection of the trainer.
func (t *Trainer) Disconnected() { t.connections.Add(-1) }

// newTrainer is one that has pushed nothing.
func (h *View) newTrainer(ordinal uint32, incarnation uint64) *Trainer {
	return &Trainer{ordinal: ordinal, incarnation: incarnation, applied: make([]uint64, len(h.blocks)), columns: h.newColumns()}
}

// Join finds or makes the trainer of a data connection. digest is that of its placement, and epoch the epoch of the placement.
func (s *Shard) Join(ordinal uint32, incarnation uint64, digest [sha256.Size]byte, epoch uint32) (*Trainer, *View, *Refusal) {
	if text := s.Unrestored(); text != "" {
		return nil, nil, Refuse(NotReady, "shard %d waits: %s", s.index, text)
	}
	h := s.view.Load()
	if h == nil && s.moving.joins {
		return nil, nil, Refuse(NotReady, "shard %d does not have its placement yet", s.index)
	}
	if h == nil {
		return nil, nil, Refuse(NoParameters, "shard %d has no parameters", s.index)
	}
	if digest != h.model.Digest {
		return nil, nil, otherPlacement(s.index, epoch, h.model.Placement.Epoch)
	}
	t, refused := s.greet(h, ordinal, incarnation)
	return t, h, refused
}

// otherPlacement refuses a trainer with another digest.
func otherPlacement(shard int, theirs, ours uint32) *Refusal {
	switch {
	case theirs != 0 && theirs < ours:
		return Refuse(Moved, "your placement has epoch %d, shard %d is at %d", theirs, shard, ours)
	case theirs > ours:
		return Refuse(NotReady, "your placement has epoch %d, shard %d is still at %d", theirs, shard, ours)
	}
	return Refuse(OtherModel, "the digest of your placement is not that of shard %d: another model, or another number of shards", shard)
}

// greet finds or makes the trainer for a hello. A newer incarnation fences the
// one before it; an older one is refused.
func (s *Shard) greet(h *View, ordinal uint32, incarnation uint64) (*Trainer, *Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.view.Load() != h {
		return nil, Refuse(Moved, "blocks of shard %d were moved just now", s.index)
	}
	old := s.trainers[ordinal]
	switch {
	case old != nil && old.incarnation == incarnation:
		return old, nil
	case old != nil && old.incarnation > incarnation:
		return nil, Refuse(Fenced, "trainer %d is at incarnation %d, this is %d", ordinal, old.incarnation, incarnation)
	case s.retired.over(incarnation) && !s.told:
		return nil, Refuse(NotReady, "shard %d has not received the sessions of the trainers yet: its checkpoint has incarnation %d as retired", s.index, incarnation)
	//guard:retired-trainer-refused
	case s.retired.over(incarnation):
		return nil, Refuse(Fenced, "incarnation %d of trainer %d is retired: it has no session", incarnation, ordinal)
	case old != nil:
		fence(h, old)
		s.Log.WithField("trainer", ordinal).WithField("incarnation", incarnation).WithField("fenced", old.incarnation).Info("trainer returned")
	}
	t := h.newTrainer(ordinal, incarnation)
	s.trainers[ordinal] = t
	return t, nil
}

// fence returns when no push of t will be applied any more: a push looks at the
// flag under its block's lock, and every lock was free once after the flag was set.
func fence(h *View, t *Trainer) {
	h.shut(t)
	for _, b := range h.blocks {
		b.mu.Lock()
		b.mu.Unlock() //nolint:staticcheck // empty on purpose: it waits for requests inside the block
	}
}

// rosterLocked lists the trainers by ordinal.
func (s *Shard) rosterLocked() []*Trainer {
	list := make([]*Trainer, 0, len(s.trainers))
	for _, t := range s.trainers {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *Trainer) int { return cmp.Compare(a.ordinal, b.ordinal) })
	return list
}
