package shard

import (
	"trainmaster/pserver/model"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
)

// newTable makes a share of a table of embeddings, without rows.
func (s *Shard) newTable(m *model.Model, k int, held []uint32) *table.Table {
	return table.New(m.Placement.Sparse[k], m.Optimizer, held, func() *table.Cut {
		if c := s.cut.Load(); c != nil {
			return c.Tables[k]
		}
		return nil
	})
}

// newView is a view of a model, with its tables.
func (s *Shard) newView(m *model.Model) *View {
	h := newView(m, s.index)
	for k := range m.Placement.Sparse {
		h.tables = append(h.tables, s.newTable(m, k, m.Placement.HeldSlots(k, s.index)))
	}
	return h
}

// newEmptyView is a view of a model that holds nothing.
func (s *Shard) newEmptyView(m *model.Model) *View {
	h := &View{model: m}
	for k := range m.Placement.Sparse {
		h.tables = append(h.tables, s.newTable(m, k, nil))
	}
	return h
}

// slotsHeld counts the slots of all tables.
func (h *View) slotsHeld() (n int) {
	for _, t := range h.tables {
		n += len(t.Held())
	}
	return n
}

// isEmpty reports whether nothing of the model is here.
func (h *View) isEmpty() bool { return len(h.blocks)+h.slotsHeld() == 0 }

// cutTables is what a cut fixes of the tables.
func (s *Shard) cutTables(c *Cut, since func(h *View, table int, number uint64) *table.Cut) []*table.Cut {
	list := make([]*table.Cut, len(c.view.tables))
	for k := range list {
		list[k] = &table.Cut{Number: c.number}
		if since != nil {
			list[k].Since = since(c.view, k, c.number)
		}
		for _, t := range c.Trainers {
			list[k].Trainers = append(list[k].Trainers, t.Trainer)
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
func (s *Shard) Lookup(h *View, by *Trainer, number int, rows *table.Batch, dst []float32) (version uint64, refused *Refusal) {
	var looks *partition.Trainer
	if h.model.Staleness.Policy == staleness.Scale {
		looks = by.Trainer
	}
	s.rowsMu.RLock()
	defer s.rowsMu.RUnlock()
	if err := h.tables[number].Lookup(rows, looks, dst); err != nil {
		return 0, refusalOf(err, by)
	}
	return s.version.Load(), nil
}

// Scan copies rows of a table from a position on, at most limit bytes, and returns the next position.
func (h *View) Scan(number int, from table.Place, limit int, rows *table.Batch) (next table.Place, refused *Refusal) {
	next, err := h.tables[number].Scan(from, limit, rows)
	if err != nil {
		return next, refusalOf(err, nil)
	}
	return next, nil
}

// PushRows applies gradients to each slot that does not have the trainer's step, and counts these slots. A refusal can follow
// after some slots are updated: a repetition then updates the others.
func (s *Shard) PushRows(h *View, t *Trainer, number int, u Update, rows *table.Batch) (applied int, refused *Refusal) {
	if refused := s.opened(); refused != nil {
		return 0, refused
	}
	tbl := h.tables[number]
	cfg := tbl.Config()
	//guard:step-beyond-table-clock
	if err := cfg.CheckStep(u.Step); err != nil {
		return 0, Refuse(BadBatch, "%v", err)
	}
	step := table.Step{Number: u.Step, Scale: h.model.Update(0, u.Step, u.Scale*s.rate.Load().Scale).Scale} //guard:rows-use-the-learning-rate
	var weight func(staleness uint64) float32
	if bound := h.model.Staleness; bound.Policy == staleness.Scale {
		weight = bound.Weight
	}
	applied, err := tbl.Update(rows, t.Trainer, step, weight)
	s.seeTable(tbl, "step", step.Number)
	if err != nil {
		return applied, refusalOf(err, t)
	}
	return applied, nil
}
