package dataport

import (
	"math"

	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// scanRows replies with rows of a table from a position on, and with the next position.
func (c *conn) scanRows(buf *buffer, r *reply) *wire.Fault {
	head, h := &c.head, c.view
	switch {
	case head.Block >= uint64(len(h.Tables())):
		return wire.Faultf(wire.NoSuchTable, "%v for table %d: the model has %d", head.Op, head.Block, len(h.Tables()))
	case buf != nil:
		return wire.Faultf(wire.BadLength, "%v with a payload of %d bytes", head.Op, head.Length)
	case head.Argument >= table.Slots || head.Step > math.MaxUint32:
		return wire.Faultf(wire.Malformed, "%v from row %d of slot %d: expected a slot below %d", head.Op, head.Step, head.Argument, table.Slots)
	}
	t := h.Tables()[head.Block]
	rows := scans.Get().(*table.Batch)
	defer scans.Put(rows)
	next, refused := h.Scan(int(head.Block), table.Place{Slot: head.Argument, Row: uint32(head.Step)}, wire.MaxBatch, rows)
	if refused != nil {
		return faultOf(refused)
	}
	if r.buf = c.room(); r.buf == nil {
		return wire.Faultf(wire.Stopping, "shard %d is shutting down", c.shard.Index())
	}
	payload, laid := wire.Layout(r.buf.bytes, len(rows.Spans), len(rows.IDs), t.Config().Dim)
	wire.Number(payload, 0, 1)
	copy(laid.Spans, rows.Spans)
	copy(laid.IDs, rows.IDs)
	copy(laid.Values, rows.Values)
	r.head.DType, r.head.Argument, r.head.Step = wire.RowBatch, next.Slot, uint64(next.Row)
	r.head.Version = core.ClampVersion(c.shard.Version())
	r.attach(payload)
	return nil
}
