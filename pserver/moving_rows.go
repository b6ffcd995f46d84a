package pserver

import (
	"fmt"
	"slices"

	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// Rows that trainers have staged move with their slots. As a frame has rows of many slots, a trainer stages nothing for a table
// while slots of it leave, and a frame for a placement that is over is answered "moved": its trainer then stages the whole table
// anew, everywhere. So of what was staged for the old placement only that counts which is complete here and where the slots come from.

// stagedRows is what a trainer has staged for a slot.
type stagedRows struct {
	attempt
	ids   []int64
	grads []float32
}

// slotsStay refuses rows for a placement that is over, or about to be. The caller has the lock of a stage.
func (s *shard) slotsStay(h *holding, t *table.Table) *wire.Fault {
	switch now := s.holding.Load(); {
	//guard:staged-rows-of-this-placement
	case now == nil || now.model.Placement.Epoch != h.model.Placement.Epoch:
		return wire.Faultf(wire.Moved, "placement epoch %d of table %q is over at shard %d", h.model.Placement.Epoch, t.Config().Name, s.index)
	case t.Leaving() != nil:
		return wire.Faultf(wire.Wait, "slots of table %q are about to move", t.Config().Name)
	}
	return nil
}

// sendStaged sends what trainers have staged for a slot, as long as it is frozen.
func (s *shard) sendStaged(o *slotOut, send func(slotPiece) error) error {
	for _, incarnation := range o.stagedBy {
		staged, err := s.stagedFor(o, incarnation)
		if err == nil {
			err = send(slotPiece{slotID: o.slotID, staged: staged})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stagedFor copies what a trainer has staged for a slot.
func (s *shard) stagedFor(o *slotOut, incarnation uint64) (*stagedRows, error) {
	s.commitMu.Lock() // no placement changes, and no version
	defer s.commitMu.Unlock()
	//guard:staged-rows-need-frozen-slots
	if !o.IsFrozen() {
		return nil, fmt.Errorf("%w: slot %d of table %d is not frozen any more", errOldMove, o.slot, o.slotID.table)
	}
	g := s.stages.find(incarnation)
	if g == nil {
		return nil, fmt.Errorf("%w: incarnation %d has staged nothing any more", errOldMove, incarnation)
	}
	return g.rowsOf(o.slotID, o.table.Config().Dim), nil
}

// rowsOf copies what is staged for a slot.
func (g *stage) rowsOf(id slotID, dim int) *stagedRows {
	g.mu.Lock()
	defer g.mu.Unlock()
	staged := &stagedRows{attempt: attempt{g.incarnation, g.version, g.records, 0}}
	for _, p := range g.rows[id.table].parts {
		staged.sequence = max(staged.sequence, p.sequence)
		k := 0
		for _, span := range p.rows.Spans {
			n := int(span.Rows)
			if span.Slot == id.slot {
				staged.ids = append(staged.ids, p.rows.IDs[k:k+n]...)
				staged.grads = append(staged.grads, p.rows.Values[k*dim:(k+n)*dim]...)
			}
			k += n
		}
	}
	return staged
}

// placeRowsLocked takes what is staged along to the slots of h: that of slots which left is dropped, that of
// those which arrived is added.
func (st *stages) placeRowsLocked(old, h *holding, arrived []*slotArrival) {
	for _, a := range arrived {
		for _, staged := range a.staged {
			st.admitLocked(h, staged.attempt)
		}
	}
	for k, table := range h.tables {
		var slots []*slotArrival
		for _, a := range arrived {
			if int(a.table) == k {
				slots = append(slots, a)
			}
		}
		left := slices.ContainsFunc(old.tables[k].Held(), func(slot uint32) bool { return !table.Holds(slot) })
		for _, g := range st.byIncarnation {
			rows := &g.rows[k]
			if left {
				//guard:staged-rows-of-held-slots
				rows.only(table)
			}
			if len(slots) == 0 {
				continue
			}
			p := g.arrival(slots, table.Config().Dim)
			//guard:staged-table-complete
			if whole := rows.whole() || len(old.tables[k].Held()) == 0; p == nil || !whole {
				rows.reset() // its trainer stages the table again
				continue
			}
			rows.parts = append(rows.parts, *p)
			rows.present = len(rows.parts)
			st.bytes.Add(int64(4 * len(p.payload)))
		}
	}
}

// arrival is the part of a stage that came with slots of one table; nil if one came without.
func (g *stage) arrival(slots []*slotArrival, dim int) *rowPart {
	var shares []*stagedRows // of the slots that it touched
	var spans []wire.Span
	ids, sequence := 0, uint64(0)
	for _, a := range slots {
		i := slices.IndexFunc(a.staged, func(r *stagedRows) bool {
			return r.incarnation == g.incarnation && r.version == g.version && r.records == g.records
		})
		if i < 0 {
			return nil
		}
		sequence = max(sequence, a.staged[i].sequence)
		if n := len(a.staged[i].ids); n > 0 {
			shares, spans, ids = append(shares, a.staged[i]), append(spans, wire.Span{Slot: a.slot, Rows: uint32(n)}), ids+n
		}
	}
	size := wire.RowsSize(len(spans), ids, dim)
	p := &rowPart{payload: make([]float32, (size+3)/4), sequence: sequence}
	_, p.rows = wire.Layout(wire.FloatBytes(p.payload), len(spans), ids, dim)
	copy(p.rows.Spans, spans)
	k := 0
	for _, share := range shares {
		copy(p.rows.IDs[k:], share.ids)
		copy(p.rows.Values[k*dim:], share.grads)
		k += len(share.ids)
	}
	return p
}

// only drops the rows of slots that a table does not hold.
func (st *rowStage) only(t *table.Table) {
	dim := t.Config().Dim
	for i := range st.parts {
		rows := &st.parts[i].rows
		spans, from, to := rows.Spans[:0], 0, 0
		for _, span := range rows.Spans {
			n := int(span.Rows)
			if t.Holds(span.Slot) {
				copy(rows.IDs[to:], rows.IDs[from:from+n])
				copy(rows.Values[to*dim:], rows.Values[from*dim:(from+n)*dim])
				spans, to = append(spans, span), to+n
			}
			from += n
		}
		rows.Spans, rows.IDs, rows.Values = spans, rows.IDs[:to], rows.Values[:to*dim]
	}
}

// checkStaged says what does not fit a slot that came with what is staged for it.
func checkStaged(t *table.Table, slot uint32, r *stagedRows) error {
	dim := t.Config().Dim
	if len(r.grads) != len(r.ids)*dim {
		return fmt.Errorf("%w: %d floats are staged for %d ids of table %q: expected %d for each", errMismatch, len(r.grads), len(r.ids), t.Config().Name, dim)
	}
	for _, id := range r.ids {
		if t.Config().SlotOf(id) != slot {
			return fmt.Errorf("%w: id %d is staged for slot %d of table %q, and is of slot %d", errMismatch, id, slot, t.Config().Name, t.Config().SlotOf(id))
		}
	}
	return nil
}
