package shard

import (
	"errors"

	"trainmaster/pserver/model"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// Slots is the number of slots of a table.
const Slots = table.Slots

// ErrNotHeld is the error of a batch with a slot that another shard owns.
var ErrNotHeld = table.ErrNotHeld

// newTables makes the shard's share of a model's tables of embeddings, without rows.
func (s *Shard) newTables(m *model.Model) []*table.Table {
	list := make([]*table.Table, len(m.Placement.Sparse))
	for k := range list {
		list[k] = s.newTable(m, k, m.Placement.HeldSlots(k, s.index))
	}
	return list
}

func (s *Shard) newTable(m *model.Model, k int, held []uint32) *table.Table {
	return table.New(m.Placement.Sparse[k], m.Optimizer, held, func() *table.Cut {
		if c := s.cuts.current.Load(); c != nil {
			return c.Tables[k]
		}
		return nil
	})
}

// newView is a view of a model, with its tables.
func (s *Shard) newView(m *model.Model) *View {
	h := newView(m, s.index)
	h.tables = s.newTables(m)
	return h
}

// newColumns returns the table columns of a trainer without pushes.
func (h *View) newColumns() []*table.Column {
	columns := make([]*table.Column, len(h.tables))
	for k := range columns {
		columns[k] = &table.Column{}
	}
	return columns
}

// cutTables is what a cut fixes of the tables.
func (s *Shard) cutTables(c *Cut, since func(h *View, table int, number uint64) *table.Cut) []*table.Cut {
	list := make([]*table.Cut, len(c.view.tables))
	for k := range list {
		list[k] = &table.Cut{Number: c.number}
		if since != nil {
			list[k].Since = since(c.view, k, c.number)
		}
		for _, t := range c.Trainers {
			list[k].Columns = append(list[k].Columns, t.columns[k])
		}
	}
	return list
}

// RowsHeld is the number of rows of all tables.
func (h *View) RowsHeld() (n int) {
	for _, t := range h.tables {
		n += t.Rows()
	}
	return n
}

// Lookup fills dst with rows of one version. If stale gradients have a lower learning rate, the table notes what the trainer saw.
func (s *Shard) Lookup(h *View, by *Trainer, number int, rows *wire.Rows, dst []float32) (version uint64, refused *Refusal) {
	t := h.tables[number]
	if h.model.Staleness.Policy == staleness.Scale {
		t.Look(rows, by.columns[number])
	}
	s.rowsMu.RLock()
	defer s.rowsMu.RUnlock()
	if err := t.Lookup(rows, dst); err != nil {
		return 0, refuseRows(err, t, rows)
	}
	return s.version.Load(), nil
}

// Scan copies rows of a table from a position on, and returns the next position.
func (h *View) Scan(number int, slot, row uint32, rows *wire.Rows) (nextSlot, nextRow uint32, refused *Refusal) {
	t := h.tables[number]
	next, err := t.Scan(table.Place{Slot: slot, Row: row}, rows)
	if err != nil {
		return 0, 0, refuseRows(err, t, rows)
	}
	return next.Slot, next.Row, nil
}

// PushRows applies gradients to each slot that does not have the trainer's step, and counts these slots. A refusal can follow
// after some slots are updated: a repetition then updates the others.
func (s *Shard) PushRows(h *View, t *Trainer, number int, u Update, rows *wire.Rows) (applied int, refused *Refusal) {
	tbl := h.tables[number]
	step := table.Step{Number: u.Step, Scale: h.model.Update(0, u.Step, u.Scale).Scale}
	var weight func(staleness uint64) float32
	if bound := h.model.Staleness; bound.Policy == staleness.Scale {
		weight = bound.Weight
	}
	applied, err := tbl.UpdateStale(rows, t.columns[number], step, weight)
	s.seeTable(tbl, "step", step.Number)
	if errors.Is(err, table.ErrEnded) {
		return applied, Refuse(Fenced, "incarnation %d of trainer %d was replaced by a newer one", t.incarnation, t.ordinal)
	}
	if err != nil {
		return applied, refuseRows(err, tbl, rows)
	}
	return applied, nil
}

// refuseRows refuses a batch with a slot that took no update or has no rows.
func refuseRows(err error, t *table.Table, rows *wire.Rows) *Refusal {
	switch {
	case errors.Is(err, table.ErrMoved):
		return Refuse(Moved, "%v", err)
	case errors.Is(err, table.ErrFrozen):
		return Refuse(Frozen, "%v", err).Until(t.Frozen(rows))
	case errors.Is(err, table.ErrNotFinite):
		return Refuse(Changed, "%v", err)
	}
	return Refuse(BadBatch, "%v", err)
}
