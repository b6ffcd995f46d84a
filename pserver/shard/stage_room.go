package shard

import (
	"fmt"
	"time"

	"trainmaster/pserver/model"
)

// crowd is when a trainer first found no memory for its gradients of a version.
type crowd struct {
	version uint64
	since   time.Time
}

// stageNeed is the bytes that the gradients of one trainer take, without rows of tables.
func (h *View) stageNeed() (n int64) {
	for _, b := range h.blocks {
		n += int64(4 * b.Len)
	}
	return n
}

// StagedBytes is the memory of all staged gradients.
func (s *Shard) StagedBytes() int64 { return s.stages.bytes.Load() }

// StageUse returns the bytes of the gradients of one trainer without rows, the most bytes of rows that a trainer has staged, and the
// limit for all trainers.
func (s *Shard) StageUse(h *View) (need, rows, limit int64) {
	return h.stageNeed(), s.stages.mostRows(), s.stages.limit
}

// CheckStageRoom refuses a shard that is too big for the gradients of any trainer.
func (s *Shard) CheckStageRoom(m *model.Model) error {
	if need := newView(m, s.index).stageNeed(); m.Sync && need > s.stages.limit {
		return fmt.Errorf("staged gradients: expected at most %d bytes (--stage-bytes) of all trainers, found %d of one: start the parameter servers with a greater --stage-bytes, or more of them", s.stages.limit, need)
	}
	return nil
}

// withRoom stages gradients. Without memory for them it frees the stages of earlier versions; more is the rows of tables among them, in
// bytes. If the gradients of all trainers do not fit, the trainer waits: perhaps a step is made without it. If none is made for
// StageWait, the answer is NoRoom, and the stage of the trainer is dropped: the other trainers can continue without it.
func (s *Shard) withRoom(h *View, t *Trainer, more int64, arrived time.Time, attempt func() *Refusal) *Refusal {
	refused := attempt()
	if refused == nil || refused.Reason != Full {
		return refused
	}
	s.stages.prune(s.version.Load(), nil)
	//guard:retirement-drops-stages
	s.dropUnnamed()
	if refused = attempt(); refused == nil || refused.Reason != Full {
		return refused
	}
	live := map[uint64]bool{}
	s.mu.Lock()
	for _, t := range s.trainers {
		live[t.Incarnation()] = !t.Ended() && t.connections.Load() > 0
	}
	s.mu.Unlock()
	trainers, rows := s.stages.held(live)
	need := h.stageNeed()
	if int64(trainers)*need+rows+more <= s.stages.limit {
		return refused // the rest is of trainers that are gone: the next step, or their retirement, frees it
	}
	now := crowd{s.version.Load(), arrived}
	since := t.crowded.Load()
	if since == nil || since.version != now.version {
		t.crowded.Store(&now)
		return refused
	}
	//guard:stage-wait-limit
	if now.since.Sub(since.since) < s.StageWait {
		return refused
	}
	s.stages.dropIf(func(g *stage) bool { return g.incarnation == t.Incarnation() })
	return Refuse(NoRoom, "shard %d: expected at most %d bytes of staged gradients (--stage-bytes), found %d trainers with %d bytes each and %d bytes of rows: start the parameter servers with a greater --stage-bytes, or the job with fewer trainers",
		s.index, s.stages.limit, trainers, need, rows+more)
}

// dropUnnamed frees the stages of retired trainers that no step can name. A step that was committed before the retirement can
// still name one, and can arrive after it: its stage stays until this shard has made that version.
func (s *Shard) dropUnnamed() {
	s.mu.Lock()
	unnamed, after := s.unnamed, s.unnamedAfter
	s.mu.Unlock()
	//guard:committed-stage-kept
	s.stages.dropIf(func(g *stage) bool { return unnamed.over(g.incarnation) && g.version >= after })
}

// each calls f with all stages, with both locks held.
func (st *stages) each(f func(*stage)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, g := range st.byIncarnation {
		g.mu.Lock()
		f(g)
		g.mu.Unlock()
	}
}

// dropIf drops the stages that match, with their memory.
func (st *stages) dropIf(match func(*stage) bool) {
	st.each(func(g *stage) {
		if match(g) {
			g.dropped = true
			st.bytes.Add(-g.bytes())
			delete(st.byIncarnation, g.incarnation)
		}
	})
}

// held counts the live trainers that have a stage, and the bytes of rows in those stages.
func (st *stages) held(live map[uint64]bool) (trainers int, rows int64) {
	st.each(func(g *stage) {
		if live[g.incarnation] {
			trainers++
			rows += g.rowBytes()
		}
	})
	return trainers, rows
}

// bytes is the memory of a stage, whose lock is held.
func (g *stage) bytes() (n int64) {
	for _, p := range g.parts {
		n += int64(4 * len(p.sum))
	}
	return n + g.rowBytes()
}

// rowBytes is the memory of the rows in a stage, whose lock is held. It stays from version to version.
func (g *stage) rowBytes() (n int64) {
	for i := range g.rows {
		n += g.rows[i].bytes()
	}
	return n
}

// mostRows is the greatest memory of rows in a stage: what a trainer needs besides its blocks, as far as is known.
func (st *stages) mostRows() (most int64) {
	st.each(func(g *stage) {
		//guard:staged-rows-counted
		most = max(most, g.rowBytes())
	})
	return most
}
