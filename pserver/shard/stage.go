package shard

import (
	"sync"
	"sync/atomic"

	"trainmaster/pserver/table"
)

// stages holds the gradients that wait for a commit: at most one version per
// incarnation of a trainer. A stage outlives its trainer's connection and its
// fencing, since a commit that names it may follow.
type stages struct {
	limit int64
	bytes atomic.Int64 // of all parts

	mu            sync.Mutex // taken before the lock of a stage
	byIncarnation map[uint64]*stage
}

// stage is one trainer's gradient sums for this shard, computed at version.
type stage struct {
	incarnation uint64

	mu      sync.Mutex
	dropped bool // no longer in stages: find the new one
	version uint64
	records uint32
	parts   []part // by local block
	present int
	rows    []rowStage // by table
}

type part struct {
	sum      []float32 // kept from version to version
	sequence uint64    // of the frame that filled it, 0: not at this version
}

// of finds or makes the stage of an incarnation, and returns it locked.
func (st *stages) of(incarnation uint64, holding *atomic.Pointer[View]) *stage {
	for {
		st.mu.Lock()
		g := st.byIncarnation[incarnation]
		if g == nil {
			g = newStage(incarnation, holding.Load())
			st.byIncarnation[incarnation] = g
		}
		st.mu.Unlock()
		g.mu.Lock()
		if !g.dropped {
			return g
		}
		g.mu.Unlock()
	}
}

func newStage(incarnation uint64, h *View) *stage {
	return &stage{incarnation: incarnation, parts: make([]part, len(h.blocks)), rows: make([]rowStage, len(h.tables))}
}

// findAll returns the stages of contributors, nil where there is none.
func (st *stages) findAll(contributors []Contributor) []*stage {
	st.mu.Lock()
	defer st.mu.Unlock()
	found := make([]*stage, len(contributors))
	for i, c := range contributors {
		found[i] = st.byIncarnation[c.Incarnation]
	}
	return found
}

// reserve takes n bytes of the limit, if there are as many.
func (st *stages) reserve(n int64) bool {
	if st.bytes.Add(n) > st.limit {
		st.bytes.Add(-n)
		return false
	}
	return true
}

// prune drops all stages for versions below version, with their memory, except the stages of keep: these trainers will stage again.
func (st *stages) prune(version uint64, keep map[uint64]bool) {
	st.dropIf(func(g *stage) bool { return g.version < version && !keep[g.incarnation] })
}

// reset starts the stage of another version. The caller holds g.mu.
func (g *stage) reset(version uint64, records uint32) {
	g.version, g.records, g.present = version, records, 0
	for i := range g.parts {
		g.parts[i].sequence = 0
	}
	for i := range g.rows {
		g.rows[i].reset()
	}
}

// newest returns the sequence of the last frame of the version that the stage has. The caller holds g.mu.
func (g *stage) newest() (sequence uint64) {
	for _, p := range g.parts {
		sequence = max(sequence, p.sequence)
	}
	for _, r := range g.rows {
		for _, p := range r.parts {
			sequence = max(sequence, p.sequence)
		}
	}
	return sequence
}

// openStage returns the trainer's stage at the version of a frame, locked, if the frame is neither late nor early.
func (s *Shard) openStage(t *Trainer, by Gradient) (*stage, *Refusal) {
	if t.Ended() {
		return nil, t.refuse()
	}
	g := s.stages.of(t.Incarnation(), &s.view)
	now, changed := s.versionNow()
	var refused *Refusal
	switch {
	case by.Version < now || by.Version < g.version:
		refused = Refuse(Stale, "gradient was computed at version %d, shard %d is at %d", by.Version, s.index, now)
	//guard:stage-of-version-kept
	case by.Version > now: // the stage for the next version is still needed
		refused = Refuse(NotYet, "gradient was computed at version %d, shard %d is still at %d", by.Version, s.index, now).Until(changed)
	//guard:stage-of-newest-attempt
	case by.Version == g.version && by.Records != g.records && by.Sequence < g.newest():
		refused = Refuse(Stale, "gradient is of an earlier attempt at version %d, of %d records: there is one of %d by now", by.Version, by.Records, g.records)
	}
	if refused != nil {
		g.mu.Unlock()
		return nil, refused.At(now)
	}
	if by.Version != g.version || by.Records != g.records {
		g.reset(by.Version, by.Records)
	}
	return g, nil
}

// stage keeps the gradient sum of one block until a commit names it. Sending it
// again changes nothing; a later frame for the same version replaces it.
func (s *Shard) stage(b *Block, t *Trainer, by Gradient, values Values) *Refusal {
	g, refused := s.openStage(t, by)
	if refused != nil {
		return refused
	}
	defer g.mu.Unlock()
	p := &g.parts[b.Local]
	if p.sequence > by.Sequence {
		return nil // an older frame, overtaken by its own repetition
	}
	if p.sum == nil {
		if !s.stages.reserve(int64(4 * b.Len)) {
			return Refuse(Full, "shard %d holds %d bytes of staged gradients, the limit is %d", s.index, s.stages.bytes.Load(), s.stages.limit)
		}
		p.sum = make([]float32, b.Len)
	}
	if p.sequence > 0 {
		p.sequence = 0
		g.present--
	}
	if !values.CopyTo(p.sum) {
		return RefuseChanged("stage", b.Name())
	}
	p.sequence = by.Sequence
	g.present++
	s.Counters.Staged.Add(1)
	return nil
}

// StageBlock stages the gradient sum of one block, if the stages have room for it.
func (s *Shard) StageBlock(h *View, b *Block, t *Trainer, by Gradient, values Values) *Refusal {
	return s.withRoom(h, t, 0, by.Arrived, func() *Refusal { return s.stage(b, t, by, values) })
}

// StageTable stages one part of the sums of a table, if the stages have room for it.
func (s *Shard) StageTable(h *View, number int, rows *table.Batch, t *Trainer, by Gradient) *Refusal {
	size := int64(table.BatchBytes(len(rows.Spans), len(rows.IDs), h.tables[number].Config().Dim))
	return s.withRoom(h, t, size, by.Arrived, func() *Refusal { return s.stageRows(h, number, rows, t, by) })
}
