package params

import (
	"context"
	"fmt"
	"unsafe"

	"trainmaster/pserver/sparse"
	"trainmaster/pserver/wire"
)

// Scan reads the rows of a table that are kept, in no particular order, and gives them to yield, values of shape
// [ids, dim]; both are valid during the call only. An id that was never updated has no row. While others push, a row is as
// it was at some moment of the scan. After a restart of a server in the middle, its rows come again from the first one on.
// An error of yield ends the scan.
func (c *Client) Scan(ctx context.Context, table string, yield func(ids []int64, values []float32) error) error {
	var call rowCall
	if err := c.findTable(table, &call); err != nil {
		return fmt.Errorf("scan: %w", err)
	}
	for _, l := range c.links {
		if err := l.scan(ctx, &call, yield); err != nil {
			return fmt.Errorf("scan: %w", err)
		}
	}
	return nil
}

// scan reads the rows of one shard.
func (l *link) scan(ctx context.Context, call *rowCall, yield func(ids []int64, values []float32) error) error {
	var at sparse.Place
	restarted := func() { at = sparse.Place{} }
	for at.Slot < sparse.Slots {
		var rows wire.Rows
		next := at
		err := l.persist(ctx, restarted, func(bool) (err error) {
			rows, next, err = l.stream.scan(ctx, l, call, at)
			return err
		})
		if err != nil {
			return err
		}
		if len(rows.IDs) > 0 {
			if err := yield(rows.IDs, rows.Values); err != nil {
				return err
			}
		}
		at = next
	}
	return nil
}

// scan asks for the rows from a place on.
func (s *stream) scan(ctx context.Context, l *link, call *rowCall, from sparse.Place) (rows wire.Rows, next sparse.Place, err error) {
	head := wire.Header{
		Op: wire.ScanRows, Block: uint64(call.number), Incarnation: l.client.cfg.Incarnation, Placement: s.place,
		Argument: from.Slot, Step: uint64(from.Row), ShardEpoch: s.epoch, JobEpoch: s.job, Sequence: l.client.sequence.next(),
	}
	at := s.memory.place(wire.MaxPayload)
	head.Flags = at.flags()
	send := func(over <-chan struct{}) error {
		if err := s.memory.acquire(at, over); err != nil {
			return err
		}
		raw := &s.headers[0]
		head.Encode(raw)
		wire.Seal(raw, nil)
		s.pieces = append(s.pieces, raw[:])
		return s.flush(ctx)
	}
	collect := func() error {
		defer s.memory.release(at)
		if err := s.header(ctx, head.Sequence, at); err != nil {
			return err
		}
		next = sparse.Place{Slot: s.head.Argument, Row: uint32(s.head.Step)}
		if s.head.DType != wire.RowBatch || s.head.Length > wire.MaxPayload {
			return fmt.Errorf("%v reply has %d bytes of %v, expected at most %d of %v", head.Op, s.head.Length, s.head.DType, wire.MaxPayload, wire.RowBatch)
		}
		words := make([]int64, (s.head.Length+7)/8) // aligned
		payload := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), s.head.Length)
		if err := s.payload(payload); err != nil {
			return err
		}
		if next.Slot < from.Slot || next.Slot == from.Slot && next.Row <= from.Row {
			return fmt.Errorf("%v reply goes on from row %d of slot %d, after row %d of slot %d", head.Op, next.Row, next.Slot, from.Row, from.Slot)
		}
		rows, err = wire.ParseRows(payload, call.table.Dim)
		return err
	}
	err = s.exchange(ctx, send, collect)
	return rows, next, err
}
