package shards

import (
	"context"
	"fmt"
	"unsafe"

	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/link"
	"trainmaster/trainer/params/plan"
	"trainmaster/trainer/params/stream"
)

// Scan reads the stored rows of a table, and passes them to yield slot by slot. Both slices are valid during the call only.
func (set *Set) Scan(ctx context.Context, name string, yield func(ids []int64, values []float32) error) error {
	call := RowCall{set: set}
	if err := call.findTable(name); err != nil {
		return err
	}
	rows := plan.Scan{Dim: call.table.Dim, Yield: yield}
	for {
		var err error
		for i := 0; i < len(set.shards) && err == nil; i++ {
			err = call.scanShard(ctx, set.shards[i], &rows)
		}
		if err == nil {
			return nil
		}
		if link.IsLayoutStale(err) {
			err = set.refreshLayout(ctx, err)
		}
		if err != nil {
			return err
		}
	}
}

// scanShard reads the rows of one shard.
func (call *RowCall) scanShard(ctx context.Context, s *shard, whole *plan.Scan) error {
	owners := call.set.table.SlotOwners[call.number]
	here := func(slot uint32) bool { return owners[slot] == uint32(s.Index) }
	var at table.Place
	whole.Drop()
	for {
		for at.Slot < table.Slots && (!here(at.Slot) || whole.Done[at.Slot]) {
			at = table.Place{Slot: at.Slot + 1}
		}
		if at.Slot == table.Slots {
			return nil
		}
		var rows wire.Rows
		next, epoch := at, s.Epoch
		if err := s.Do(ctx, []stream.Frame{scanFrame(call, at, &rows, &next)}); err != nil {
			return err
		}
		if s.Epoch != epoch { // a restarted server has other rows at the position
			at.Row = 0
			whole.Drop()
			continue
		}
		if err := whole.Take(&rows.Batch, next.Slot); err != nil {
			return err
		}
		for slot := at.Slot; slot < next.Slot; slot++ {
			whole.Done[slot] = whole.Done[slot] || here(slot)
		}
		at = next
	}
}

// scanFrame requests the rows from a place on. The reply sets rows and next.
func scanFrame(call *RowCall, from table.Place, rows *wire.Rows, next *table.Place) stream.Frame {
	return stream.Frame{
		Progress: new(stream.Progress), Size: wire.MaxPayload,
		Head: wire.Header{Op: wire.ScanRows, Block: uint64(call.number), Argument: from.Slot, Step: uint64(from.Row)},
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
			*rows, err = wire.ParseRows(payload, call.table.Dim, nil)
			return err
		},
	}
}
