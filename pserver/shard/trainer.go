package shard

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"sync/atomic"

	"trainmaster/pserver/partition"
)

// Trainer is one incarnation of a trainer, as a shard knows it.
type Trainer struct {
	*partition.Trainer
	ordinal     uint32
	crowded     atomic.Pointer[crowd]
	connections atomic.Int32 // open ones
}

// Ordinal is the number of the trainer.
func (t *Trainer) Ordinal() uint32 { return t.ordinal }

// Connected counts a connection of the trainer, until Disconnected.
func (t *Trainer) Connected() { t.connections.Add(1) }

// Disconnected ends a connection of the trainer.
func (t *Trainer) Disconnected() { t.connections.Add(-1) }

// refuse refuses a trainer that has ended.
func (t *Trainer) refuse() *Refusal {
	return Refuse(Fenced, "incarnation %d of trainer %d was replaced by a newer one", t.Incarnation(), t.ordinal)
}

// newTrainerLocked makes the trainer of an ordinal, without steps. Its number is the smallest free number. The numbers of the trainers of
// a cut in progress are not free: the cut can still read the steps of an ended trainer.
func (s *Shard) newTrainerLocked(ordinal uint32, incarnation uint64) *Trainer {
	used := map[int]bool{}
	for _, t := range s.trainers {
		used[t.Number()] = true
	}
	if c := s.cut.Load(); c != nil {
		for _, t := range c.Trainers {
			used[t.Number()] = true
		}
	}
	number := 0
	for used[number] {
		number++
	}
	t := &Trainer{Trainer: partition.NewTrainer(number, incarnation), ordinal: ordinal}
	s.trainers[ordinal] = t
	return t
}

// Join finds or makes the trainer of a data connection. digest and epoch belong to its placement.
func (s *Shard) Join(ordinal uint32, incarnation uint64, digest [sha256.Size]byte, epoch uint32) (*Trainer, *View, *Refusal) {
	if text := s.Unrestored(); text != "" {
		return nil, nil, Refuse(NotReady, "shard %d waits: %s", s.index, text)
	}
	h := s.view.Load()
	if h == nil && s.migration.joins {
		return nil, nil, Refuse(NotReady, "shard %d does not have its placement yet", s.index)
	}
	if h == nil {
		return nil, nil, s.Lacking()
	}
	if digest != h.model.Digest {
		return nil, nil, otherPlacement(s.index, epoch, h.model.Placement.Epoch)
	}
	t, refused := s.enter(h, ordinal, incarnation)
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

// enter finds or makes the trainer for a hello. A newer incarnation fences the
// one before it; an older one is refused.
func (s *Shard) enter(h *View, ordinal uint32, incarnation uint64) (*Trainer, *Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.view.Load() != h {
		return nil, Refuse(Moved, "blocks of shard %d were moved just now", s.index)
	}
	old := s.trainers[ordinal]
	switch {
	case old != nil && old.Incarnation() == incarnation:
		return old, nil
	case old != nil && old.Incarnation() > incarnation:
		return nil, Refuse(Fenced, "trainer %d is at incarnation %d, this is %d", ordinal, old.Incarnation(), incarnation)
	case s.retired.over(incarnation) && !s.told:
		return nil, Refuse(NotReady, "shard %d has not received the sessions of the trainers yet: its checkpoint has incarnation %d as retired", s.index, incarnation)
	//guard:retired-trainer-refused
	case s.retired.over(incarnation):
		return nil, Refuse(Fenced, "incarnation %d of trainer %d is retired: it has no session", incarnation, ordinal)
	case old != nil:
		fence(h, old)
		s.note(Info, "trainer returned", map[string]any{"trainer": ordinal, "incarnation": incarnation, "fenced": old.Incarnation()})
	}
	return s.newTrainerLocked(ordinal, incarnation), nil
}

// fence returns when no push of t will be applied any more.
func fence(h *View, t *Trainer) {
	t.End()
	h.each((*partition.Partition).Drain)
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
