package params

import (
	"context"
	"fmt"
	"unsafe"

	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/link"
	"trainmaster/trainer/params/stream"
)

// Scan reads the stored rows of a table, in no particular order, and passes them to yield, values of shape [ids, dim]. Both are
// valid during the call only. An id without updates has no row. During concurrent pushes a row has its values at some point of the
// scan. No row comes twice, even after a restart of a server or a migration. An error of yield ends the scan.
func (c *Client) Scan(ctx context.Context, table string, yield func(ids []int64, values []float32) error) error {
	s := scan{yield: yield}
	if err := c.findTable(table, &s.call); err != nil {
		return fmt.Errorf("scan: %w", err)
	}
	for {
		err := c.scanShards(ctx, &s)
		if err == nil {
			return nil
		}
		if link.IsLayoutStale(err) {
			err = c.refreshLayout(ctx, err)
		}
		if err != nil {
			return fmt.Errorf("scan: %w", err)
		}
	}
}

// scan is one scan in progress. It records the completed slots, since a migration can bring them to a later shard. yield receives a
// whole slot, so that a slot can be read again from its new owner.
type scan struct {
	call  rowCall
	yield func(ids []int64, values []float32) error
	done  [table.Slots]bool

	open   uint32 // the slot of which there are rows here, and more to come
	ids    []int64
	values []float32
}

func (s *scan) drop() { s.ids, s.values = s.ids[:0], s.values[:0] }

func (c *Client) scanShards(ctx context.Context, s *scan) error {
	for _, shard := range c.shards {
		if err := c.scanShard(ctx, shard, s); err != nil {
			return err
		}
	}
	return nil
}

// scanShard reads the rows of one shard.
func (c *Client) scanShard(ctx context.Context, shard *shard, s *scan) error {
	owners := c.table.SlotOwners[s.call.number]
	here := func(slot uint32) bool { return owners[slot] == uint32(shard.Index) }
	var at table.Place
	restarted := func() {
		at.Row = 0
		s.drop()
	}
	s.drop()
	for {
		for at.Slot < table.Slots && (!here(at.Slot) || s.done[at.Slot]) {
			at = table.Place{Slot: at.Slot + 1}
		}
		if at.Slot == table.Slots {
			return nil
		}
		var rows wire.Rows
		next := at
		err := shard.Do(ctx, restarted, func(bool) []stream.Frame { return []stream.Frame{scanFrame(&s.call, at, &rows, &next)} })
		if err != nil {
			return err
		}
		if err := s.give(&rows, next.Slot); err != nil {
			return err
		}
		for slot := at.Slot; slot < next.Slot; slot++ {
			s.done[slot] = s.done[slot] || here(slot)
		}
		at = next
	}
}

// give yields the rows of incomplete slots, except slot next, whose rows continue in the next frame.
func (s *scan) give(rows *wire.Rows, next uint32) error {
	k, dim := 0, s.call.table.Dim
	for _, span := range rows.Spans {
		n := k + int(span.Rows)
		ids, values := rows.IDs[k:n], rows.Values[k*dim:n*dim]
		k = n
		if span.Slot != s.open {
			if err := s.flush(); err != nil {
				return err
			}
		}
		switch {
		case s.done[span.Slot]:
		case span.Slot == next || len(s.ids) > 0 && span.Slot == s.open:
			s.open, s.ids, s.values = span.Slot, append(s.ids, ids...), append(s.values, values...)
		default:
			if err := s.yield(ids, values); err != nil {
				return err
			}
		}
	}
	if s.open == next {
		return nil
	}
	return s.flush()
}

// flush yields the rows of the open slot, which is complete.
func (s *scan) flush() error {
	if len(s.ids) == 0 {
		return nil
	}
	defer s.drop()
	return s.yield(s.ids, s.values)
}

// scanFrame requests the rows from a place on. The reply sets rows and next.
func scanFrame(call *rowCall, from table.Place, rows *wire.Rows, next *table.Place) stream.Frame {
	return stream.Frame{
		Head: wire.Header{Op: wire.ScanRows, Block: uint64(call.number), Argument: from.Slot, Step: uint64(from.Row)},
		Size: wire.MaxPayload,
		Fill: func(*stream.Frame, []byte) (none stream.Payload) { return none },
		Take: func(_ *stream.Frame, r *stream.Reply) (err error) {
			head := &r.Head
			*next = table.Place{Slot: head.Argument, Row: uint32(head.Step)}
			if head.DType != wire.RowBatch || head.Length > wire.MaxPayload {
				return fmt.Errorf("%v reply has %d bytes of %v, expected at most %d of %v", head.Op, head.Length, head.DType, wire.MaxPayload, wire.RowBatch)
			}
			words := make([]int64, (head.Length+7)/8) // aligned
			payload := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), head.Length)
			if err := r.Bytes(payload); err != nil {
				return err
			}
			if next.Slot < from.Slot || next.Slot == from.Slot && next.Row <= from.Row {
				return fmt.Errorf("%v reply continues at row %d of slot %d: expected a row after row %d of slot %d",
					head.Op, next.Row, next.Slot, from.Row, from.Slot)
			}
			*rows, err = wire.ParseRows(payload, call.table.Dim)
			return err
		},
	}
}
