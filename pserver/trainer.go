package pserver

import (
	"cmp"
	"slices"
	"sync/atomic"

	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
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
	connections atomic.Int32
	applied     []uint64        // by local block: the last step applied
	columns     []*table.Column // by table
}

// newTrainer is one that has pushed nothing.
func (h *holding) newTrainer(ordinal uint32, incarnation uint64) *trainer {
	return &trainer{ordinal: ordinal, incarnation: incarnation, applied: make([]uint64, len(h.blocks)), columns: h.newColumns()}
}

// greet finds or makes the trainer for a hello. A newer incarnation fences the
// one before it; an older one is refused.
func (s *shard) greet(h *holding, ordinal uint32, incarnation uint64) (*trainer, *wire.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holding.Load() != h {
		return nil, wire.Faultf(wire.Moved, "blocks of shard %d were moved just now", s.index)
	}
	old := s.trainers[ordinal]
	switch {
	case old != nil && old.incarnation == incarnation:
		return old, nil
	case old != nil && old.incarnation > incarnation:
		return nil, wire.Faultf(wire.Fenced, "trainer %d is at incarnation %d, this is %d", ordinal, old.incarnation, incarnation)
	case s.retired.over(incarnation) && !s.told:
		return nil, wire.Faultf(wire.Busy, "shard %d has not heard yet who is at work: in its checkpoint incarnation %d is over", s.index, incarnation)
	//guard:retired-trainer-refused
	case s.retired.over(incarnation):
		return nil, wire.Faultf(wire.Fenced, "incarnation %d of trainer %d is over: it has no session", incarnation, ordinal)
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
		b.mu.Unlock() //nolint:staticcheck // empty on purpose: it waits for whoever is inside
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
