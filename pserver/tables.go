package pserver

import (
	"errors"

	"trainmaster/pserver/model"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// newTables makes the shard's share of a model's tables of embeddings, without rows.
func (s *shard) newTables(m *model.Model) []*table.Table {
	list := make([]*table.Table, len(m.Placement.Sparse))
	for k := range list {
		list[k] = s.newTable(m, k, m.Placement.HeldSlots(k, s.index))
	}
	return list
}

func (s *shard) newTable(m *model.Model, k int, held []uint32) *table.Table {
	return table.New(m.Placement.Sparse[k], m.Optimizer, held, func() *table.Cut {
		if c := s.cuts.current.Load(); c != nil {
			return c.tables[k]
		}
		return nil
	})
}

// newHolding is a model's holding of this shard, with its tables.
func (s *shard) newHolding(m *model.Model) *holding {
	h := newHolding(m, s.index)
	h.tables = s.newTables(m)
	return h
}

// newColumns returns the table columns of a trainer without pushes.
func (h *holding) newColumns() []*table.Column {
	columns := make([]*table.Column, len(h.tables))
	for k := range columns {
		columns[k] = &table.Column{}
	}
	return columns
}

// cutTables is what a cut fixes of the tables.
func (s *shard) cutTables(c *cut, since func(h *holding, table int, number uint64) *table.Cut) []*table.Cut {
	list := make([]*table.Cut, len(c.view.tables))
	for k := range list {
		list[k] = &table.Cut{Number: c.number}
		if since != nil {
			list[k].Since = since(c.view, k, c.number)
		}
		for _, t := range c.trainers {
			list[k].Columns = append(list[k].Columns, t.columns[k])
		}
	}
	return list
}

// rowsHeld is the number of rows of all tables.
func (h *holding) rowsHeld() (n int) {
	for _, t := range h.tables {
		n += t.Rows()
	}
	return n
}

// lookup fills dst with rows of one version.
func (s *shard) lookup(t *table.Table, rows *wire.Rows, dst []float32) (version uint64, refused *core.Refusal) {
	s.rowsMu.RLock()
	defer s.rowsMu.RUnlock()
	if err := t.Lookup(rows, dst); err != nil {
		return 0, refuseRows(err, t, rows)
	}
	return s.version.Load(), nil
}

// pushRows applies gradients to each slot that does not have the trainer's step, and counts these slots. A refusal can follow
// after some slots are updated: a repetition then updates the others.
func (s *shard) pushRows(h *holding, t *trainer, number int, u core.Update, rows *wire.Rows) (applied int, refused *core.Refusal) {
	tbl := h.tables[number]
	step := table.Step{Number: u.Step, Scale: h.model.Update(0, u.Step, u.Scale).Scale}
	var weight func(staleness uint64) float32
	if bound := h.model.Staleness; bound.Policy == staleness.Scale {
		weight = bound.Weight
	}
	applied, err := tbl.UpdateStale(rows, t.columns[number], step, weight)
	s.seeTable(tbl, "step", step.Number)
	if errors.Is(err, table.ErrEnded) {
		return applied, core.Refuse(core.Fenced, "incarnation %d of trainer %d was replaced by a newer one", t.incarnation, t.ordinal)
	}
	if err != nil {
		return applied, refuseRows(err, tbl, rows)
	}
	return applied, nil
}

// refuseRows refuses a batch with a slot that took no update or has no rows.
func refuseRows(err error, t *table.Table, rows *wire.Rows) *core.Refusal {
	switch {
	case errors.Is(err, table.ErrMoved):
		return core.Refuse(core.Moved, "%v", err)
	case errors.Is(err, table.ErrFrozen):
		return core.Refuse(core.Frozen, "%v", err).Until(t.Frozen(rows))
	case errors.Is(err, table.ErrNotFinite):
		return core.Refuse(core.Changed, "%v", err)
	}
	return core.Refuse(core.BadBatch, "%v", err)
}
