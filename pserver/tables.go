package pserver

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"trainmaster/pserver/model"
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
func (s *shard) cutTables(c *cut) []*table.Cut {
	list := make([]*table.Cut, len(s.holding.Load().tables))
	for k := range list {
		list[k] = &table.Cut{Number: c.number, Full: c.base == nil}
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

// rowFrame is a checked frame about rows of a table.
type rowFrame struct {
	number int // of the table
	table  *table.Table
	rows   wire.Rows
}

// handleRows serves a frame about rows and completes r. It sets r.buf if r takes buf over.
func (c *conn) handleRows(buf *buffer, r *reply) *wire.Fault {
	if fault := c.checkShard(); fault != nil {
		return fault
	}
	if c.head.Op == wire.ScanRows {
		return c.scanRows(buf, r)
	}
	index := indices.Get().(*wire.Index)
	defer indices.Put(index)
	f, fault := c.checkRows(buf, index)
	if fault != nil {
		return fault
	}
	switch c.head.Op {
	case wire.LookupRows:
		return c.lookupRows(f, buf, r)
	case wire.PushRows:
		return c.pushRows(f, r)
	}
	if fault := c.shard.waitVersion(c.stop, c.head.Step, c.limits.PullWait); fault != nil {
		return fault
	}
	fault = c.shard.withRoom(c.holding, c.trainer, int64(c.head.Length), func() *wire.Fault { return c.shard.stageRows(c.holding, f, c.trainer, &c.head) })
	if fault == nil {
		r.end()
	}
	return fault
}

// checkRows finds the table, and refuses whatever does not fit it. Nothing has been changed before. Spans and ids are in
// index if the payload is shared, and in a lookup, whose reply may take the place of the payload.
func (c *conn) checkRows(buf *buffer, index *wire.Index) (f rowFrame, fault *wire.Fault) {
	head, h := &c.head, c.holding
	if head.Block >= uint64(len(h.tables)) {
		return f, wire.Faultf(wire.NoSuchTable, "%v for table %d: the model has %d", head.Op, head.Block, len(h.tables))
	}
	f.number = int(head.Block)
	f.table = h.tables[f.number]
	cfg := f.table.Config()
	if head.DType != wire.RowBatch {
		return f, wire.Faultf(wire.BadDType, "%v for table %q: payload is %v, expected %v", head.Op, cfg.Name, head.DType, wire.RowBatch)
	}
	dim := cfg.Dim
	if head.Op == wire.LookupRows {
		dim = 0
	}
	var payload []byte
	if buf != nil {
		payload = buf.bytes[:head.Length]
	}
	var err error
	if buf.isShared() || head.Op == wire.LookupRows {
		f.rows, err = wire.ParseShared(payload, dim, index)
	} else {
		f.rows, err = wire.ParseRows(payload, dim)
	}
	if err != nil {
		return f, wire.Faultf(wire.BadRows, "%v for table %q: %v", head.Op, cfg.Name, err)
	}
	switch err := f.table.Check(&f.rows); {
	case errors.Is(err, table.ErrNotHeld):
		return f, wire.Faultf(wire.NoSuchSlot, "%v at shard %d: %v", head.Op, c.shard.index, err)
	case err != nil:
		return f, wire.Faultf(wire.BadRows, "%v: %v", head.Op, err)
	}
	if head.Op != wire.StageRows && f.rows.Parts != 1 {
		return f, wire.Faultf(wire.BadRows, "%v for table %q: part %d of %d: expected one part", head.Op, cfg.Name, f.rows.Part, f.rows.Parts)
	}
	if head.Op == wire.LookupRows && len(f.rows.IDs) > wire.MostRows(cfg.Dim) {
		return f, wire.Faultf(wire.BadRows, "lookup of %d rows of table %q: a frame has room for %d", len(f.rows.IDs), cfg.Name, wire.MostRows(cfg.Dim))
	}
	if !wire.Finite(f.rows.Values) {
		i := wire.FirstNotFinite(f.rows.Values)
		if i < 0 {
			return f, changed(head.Op, fmt.Sprintf("table %q", cfg.Name))
		}
		return f, wire.Faultf(wire.NotFinite, "%v for table %q: element %d of id %d is %v", head.Op, cfg.Name, i%cfg.Dim, f.rows.IDs[i/cfg.Dim], f.rows.Values[i])
	}
	return f, nil
}

// indices keeps spans and ids apart from their payload, scans what was read.
var (
	indices = sync.Pool{New: func() any { return &wire.Index{} }}
	scans   = sync.Pool{New: func() any { return &wire.Rows{} }}
)

// lookupRows answers with the rows as they are. In mode sync all of a frame are of one version.
func (c *conn) lookupRows(f rowFrame, buf *buffer, r *reply) *wire.Fault {
	if fault := c.shard.waitVersion(c.stop, uint64(c.head.Version), c.limits.PullWait); fault != nil && c.holding.model.Sync {
		return fault
	}
	if c.holding.model.Staleness.Policy == staleness.Scale {
		f.table.Look(&f.rows, c.trainer.columns[f.number])
	}
	n := len(f.rows.IDs) * f.table.Config().Dim
	version, err := c.shard.lookup(f, buf.floats[:n])
	if err != nil {
		return slotFault(err)
	}
	r.head.Version = clampVersion(version)
	c.shard.counters.rowsLookedUp.Add(uint64(len(f.rows.IDs)))
	r.buf = buf
	r.head.DType = wire.Float32
	r.begin(n)
	r.add(0, buf.floats[:n])
	r.end()
	return nil
}

// lookup fills dst with rows of one version.
func (s *shard) lookup(f rowFrame, dst []float32) (version uint64, err error) {
	s.rowsMu.RLock()
	defer s.rowsMu.RUnlock()
	err = f.table.Lookup(&f.rows, dst)
	return s.version.Load(), err
}

// pushRows applies gradients, to every slot that has not had the trainer's step.
func (c *conn) pushRows(f rowFrame, r *reply) *wire.Fault {
	scale, err := scaleOf(math.Float32frombits(c.head.Argument))
	if err != nil {
		return wire.Faultf(wire.Malformed, "%v", err)
	}
	step := table.Step{Number: c.head.Step, Scale: c.holding.model.Update(0, c.head.Step, scale).Scale}
	var weight func(staleness uint64) float32
	if bound := c.holding.model.Staleness; bound.Policy == staleness.Scale {
		weight = bound.Weight
	}
	applied, err := f.table.UpdateStale(&f.rows, c.trainer.columns[f.number], step, weight)
	if errors.Is(err, table.ErrFrozen) {
		c.awaitMove(f.table.Frozen(&f.rows))
		var more int
		more, err = f.table.UpdateStale(&f.rows, c.trainer.columns[f.number], step, weight) // all slots that do not have the step yet
		applied += more
	}
	c.shard.seeTable(f.table, "step", step.Number)
	if applied > 0 {
		c.shard.counters.rowsPushed.Add(uint64(len(f.rows.IDs)))
	}
	switch fault := slotFault(err); {
	case fault != nil:
		return fault
	case errors.Is(err, table.ErrNotFinite):
		return wire.Faultf(wire.Malformed, "%v: %v", c.head.Op, err)
	case errors.Is(err, table.ErrEnded):
		return wire.Faultf(wire.Fenced, "incarnation %d of trainer %d was replaced by a newer one", c.trainer.incarnation, c.trainer.ordinal)
	case err != nil:
		return wire.Faultf(wire.BadRows, "%v: %v", c.head.Op, err)
	}
	if repeated := len(f.rows.Spans) - applied; repeated > 0 {
		r.head.Flags |= wire.Duplicate
		c.shard.counters.duplicates.Add(uint64(repeated))
	}
	r.head.Version = clampVersion(c.shard.version.Load())
	r.end()
	return nil
}
