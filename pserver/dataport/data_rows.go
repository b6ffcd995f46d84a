package dataport

import (
	"errors"
	"fmt"
	"sync"

	"trainmaster/pserver/floats"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// rowFrame is a checked frame about rows of a table.
type rowFrame struct {
	number int // of the table
	dim    int
	rows   wire.Rows
}

// handleRows serves a frame about rows and completes r. It sets r.buf if r takes buf over.
func (c *conn) handleRows(buf *buffer, r *reply) *wire.Fault {
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
	return c.stageRows(f, r)
}

// stageRows stages gradients. If that is refused for now, it waits and tries again.
func (c *conn) stageRows(f rowFrame, r *reply) *wire.Fault {
	gradient := gradientOf(&c.head)
	gradient.Part, gradient.Parts = f.rows.Part, f.rows.Parts
	refused := c.shard.StageTable(c.view, f.number, &f.rows.Batch, c.trainer, gradient)
	for c.await(refused) {
		refused = c.shard.StageTable(c.view, f.number, &f.rows.Batch, c.trainer, gradient)
	}
	if refused == nil {
		r.end()
	}
	return faultOf(refused)
}

// checkRows finds the table, and refuses whatever does not fit it. Nothing has been changed before. Spans and ids are in
// index if the payload is shared, and in a lookup, whose reply may take the place of the payload.
func (c *conn) checkRows(buf *buffer, index *wire.Index) (f rowFrame, fault *wire.Fault) {
	head, h := &c.head, c.view
	if head.Block >= uint64(len(h.Tables())) {
		return f, wire.Faultf(wire.NoSuchTable, "%v for table %d: the model has %d", head.Op, head.Block, len(h.Tables()))
	}
	f.number = int(head.Block)
	t := h.Tables()[f.number]
	cfg := t.Config()
	f.dim = cfg.Dim
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
	if !buf.isShared() && head.Op != wire.LookupRows {
		index = nil
	}
	var err error
	if f.rows, err = wire.ParseRows(payload, dim, index); err != nil {
		return f, wire.Faultf(wire.BadRows, "%v for table %q: %v", head.Op, cfg.Name, err)
	}
	switch err := t.Check(&f.rows.Batch); {
	case errors.Is(err, table.ErrNotHeld):
		return f, wire.Faultf(wire.NoSuchSlot, "%v at shard %d: %v", head.Op, c.shard.Index(), err)
	case err != nil:
		return f, wire.Faultf(wire.BadRows, "%v: %v", head.Op, err)
	}
	if head.Op != wire.StageRows && f.rows.Parts != 1 {
		return f, wire.Faultf(wire.BadRows, "%v for table %q: part %d of %d: expected one part", head.Op, cfg.Name, f.rows.Part, f.rows.Parts)
	}
	if head.Op == wire.LookupRows && len(f.rows.IDs) > wire.MostRows(cfg.Dim) {
		return f, wire.Faultf(wire.BadRows, "lookup of %d rows of table %q: a frame has room for %d", len(f.rows.IDs), cfg.Name, wire.MostRows(cfg.Dim))
	}
	if !floats.Finite(f.rows.Values) {
		i := floats.FirstNotFinite(f.rows.Values)
		if i < 0 {
			return f, faultOf(core.RefuseChanged(head.Op.String(), fmt.Sprintf("table %q", cfg.Name)))
		}
		return f, wire.Faultf(wire.NotFinite, "%v for table %q: element %d of id %d is %v", head.Op, cfg.Name, i%cfg.Dim, f.rows.IDs[i/cfg.Dim], f.rows.Values[i])
	}
	return f, nil
}

// indices keeps spans and ids apart from their payload, scans what was read.
var (
	indices = sync.Pool{New: func() any { return &wire.Index{} }}
	scans   = sync.Pool{New: func() any { return &table.Batch{} }}
)

// lookupRows replies with rows. In a synchronous job all rows of a frame have one version.
func (c *conn) lookupRows(f rowFrame, buf *buffer, r *reply) *wire.Fault {
	if fault := c.awaitVersion(); fault != nil {
		return fault
	}
	n := len(f.rows.IDs) * f.dim
	version, refused := c.shard.Lookup(c.view, c.trainer, f.number, &f.rows.Batch, buf.floats[:n])
	if refused != nil {
		return faultOf(refused)
	}
	c.shard.Counters.RowsLookedUp.Add(uint64(len(f.rows.IDs)))
	r.buf = buf
	r.head.DType = wire.Float32
	r.Begin(core.Result{Version: version}, n)
	r.Put(0, buf.floats[:n])
	r.end()
	return nil
}

// pushRows applies gradients. If that is refused for now, it waits, and then updates the slots that do not have the step yet.
func (c *conn) pushRows(f rowFrame, r *reply) *wire.Fault {
	update, fault := updateOf(&c.head)
	if fault != nil {
		return fault
	}
	applied, refused := c.shard.PushRows(c.view, c.trainer, f.number, update, &f.rows.Batch)
	for c.await(refused) {
		var more int
		more, refused = c.shard.PushRows(c.view, c.trainer, f.number, update, &f.rows.Batch)
		applied += more
	}
	if applied > 0 {
		c.shard.Counters.RowsPushed.Add(uint64(len(f.rows.IDs)))
	}
	if refused != nil {
		return faultOf(refused)
	}
	repeated := len(f.rows.Spans) - applied
	if repeated > 0 {
		c.shard.Counters.Duplicates.Add(uint64(repeated))
	}
	r.result(core.Result{Version: c.shard.Version(), Duplicate: repeated > 0})
	r.end()
	return nil
}
