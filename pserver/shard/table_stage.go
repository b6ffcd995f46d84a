package shard

import (
	"fmt"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/table"
)

// rowStage is the staged gradients of a table: parts, each the batch of one frame. It is complete when it has all parts. There is
// at least one part: a trainer that touched no row stages an empty one.
type rowStage struct {
	parts   []rowPart
	present int
	since   uint64 // sequence of the frame that said how many parts there are
}

type rowPart struct {
	payload  []float32   // as it came; kept from version to version
	rows     table.Batch // shares payload
	sequence uint64      // of the frame that filled it, 0: not at this version
}

// reset starts another version.
func (st *rowStage) reset() {
	st.present, st.since = 0, 0
	for i := range st.parts {
		st.parts[i].sequence = 0
	}
}

func (st *rowStage) whole() bool { return st.present > 0 && st.present == len(st.parts) }

func (st *rowStage) bytes() (n int64) {
	for _, p := range st.parts {
		n += int64(4 * len(p.payload))
	}
	return n
}

// stageRows keeps one part of a trainer's sums for a table until a commit names
// it. Sending it again changes nothing; later frames for the same version replace it.
func (s *Shard) stageRows(h *View, number int, rows *table.Batch, t *Trainer, by Gradient) *Refusal {
	g, refused := s.openStage(t, by)
	if refused != nil {
		return refused
	}
	defer g.mu.Unlock()
	st, cfg := &g.rows[number], h.tables[number].Config()
	if by.Sequence < st.since {
		return nil // an older frame, replaced by a later attempt
	}
	if int(by.Parts) != len(st.parts) || st.since == 0 {
		if by.Parts > maxParts {
			return Refuse(BadBatch, "%d parts for table %q: expected at most %d", by.Parts, cfg.Name, maxParts)
		}
		st.reset()
		for len(st.parts) > int(by.Parts) {
			last := len(st.parts) - 1
			s.stages.bytes.Add(int64(-4 * len(st.parts[last].payload)))
			st.parts = st.parts[:last]
		}
		for len(st.parts) < int(by.Parts) {
			st.parts = append(st.parts, rowPart{})
		}
		st.since = by.Sequence
	}
	p := &st.parts[by.Part]
	if p.sequence > by.Sequence {
		return nil // an older frame, overtaken by its own repetition
	}
	words := table.BatchBytes(len(rows.Spans), len(rows.IDs), cfg.Dim) / 4
	if more := words - len(p.payload); more > 0 {
		if !s.stages.reserve(int64(4 * more)) {
			return Refuse(Full, "shard %d holds %d bytes of staged gradients, the limit is %d", s.index, s.stages.bytes.Load(), s.stages.limit)
		}
		p.payload = make([]float32, words)
	}
	if p.sequence > 0 {
		p.sequence = 0
		st.present--
	}
	p.rows = table.BatchIn(floats.Bytes(p.payload), len(rows.Spans), len(rows.IDs), cfg.Dim)
	copy(p.rows.Spans, rows.Spans)
	copy(p.rows.IDs, rows.IDs)
	if isFinite := floats.CopyFinite(p.rows.Values, rows.Values); rows.Shared && !isFinite {
		return RefuseChanged("stage rows", fmt.Sprintf("table %q", cfg.Name))
	}
	p.sequence = by.Sequence
	st.present++
	s.Counters.RowsStaged.Add(uint64(len(p.rows.IDs)))
	return nil
}

// maxParts is the most frames that a trainer's sums for one table and shard come in: 64 GiB.
const maxParts = 1 << 16

// missingRows returns the first table whose parts are incomplete in a stage, empty if the stage is complete for this shard.
func (g *stage) missingRows(h *View) string {
	for k := range g.rows {
		if st := &g.rows[k]; !st.whole() && len(h.tables[k].Held()) > 0 {
			return fmt.Sprintf("%d of %d parts of table %q", st.present, max(1, len(st.parts)), h.model.Placement.Sparse[k].Name)
		}
	}
	return ""
}

// sharesOf are the contributions to every slot of a table, in the order of the contributors and their parts.
func sharesOf(number int, dim int, sums []*stage) *[table.Slots][]table.Share {
	shares := &[table.Slots][]table.Share{}
	for _, g := range sums {
		for i := range g.rows[number].parts {
			r := &g.rows[number].parts[i].rows
			k := 0
			for _, span := range r.Spans {
				n := k + int(span.Rows)
				shares[span.Slot] = append(shares[span.Slot], table.Share{IDs: r.IDs[k:n], Grads: r.Values[k*dim : n*dim]})
				k = n
			}
		}
	}
	return shares
}

// shares returns the shares of all tables. The error names the slot without room.
func (h *View) shares(sums []*stage) (all []*[table.Slots][]table.Share, err error) {
	for k, t := range h.tables {
		shares := sharesOf(k, t.Config().Dim, sums)
		for _, slot := range t.Held() {
			more := 0
			for _, share := range shares[slot] {
				more += len(share.IDs)
			}
			if err := t.CheckRoom(slot, more); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrMismatch, err)
			}
		}
		all = append(all, shares)
	}
	return all, nil
}

// reduceRows applies the step to every table. Slots run in parallel; the order within a slot is fixed. All slots advance their
// clock to the version, so that old rows expire.
func (h *View) reduceRows(version uint64, all []*[table.Slots][]table.Share, records uint64, scale float32) {
	factor := float32(1 / float64(records))
	step := table.Step{Number: version, Scale: h.model.Update(0, version, scale).Scale}
	for k, t := range h.tables {
		parallel(len(t.Held()), func(i int) {
			slot := t.Held()[i]
			if shares := all[k][slot]; len(shares) > 0 || t.Config().Expiry > 0 {
				t.Commit(slot, shares, factor, step)
			}
		})
	}
}
