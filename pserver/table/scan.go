package table

import (
	"trainmaster/pserver/partition"
)

// Place is a position in the scan of a table: a row of a slot. The zero value is the start; at the end the
// slot is Slots.
type Place struct{ Slot, Row uint32 }

// Scan reads rows from a position on until a batch has limit bytes, and returns the next position. A row that exists from the first call to
// the last is read once, with the values at some point between. Rows that appear or expire during the scan can be missing. rows
// keeps its memory. The error is [partition.ErrMoved].
func (t *Table) Scan(from Place, limit int, rows *Batch) (next Place, err error) {
	rows.Spans, rows.IDs, rows.Values = rows.Spans[:0], rows.IDs[:0], rows.Values[:0]
	for _, number := range t.held {
		if number < from.Slot {
			continue
		}
		if number > from.Slot {
			from = Place{Slot: number}
		}
		if row, whole, err := t.scanSlot(from, limit, rows); err != nil || !whole {
			return Place{number, row}, err
		}
	}
	return Place{Slot: Slots}, nil
}

// scanSlot reads rows of one slot, and returns the row at which the batch was full.
func (t *Table) scanSlot(from Place, limit int, rows *Batch) (at uint32, whole bool, err error) {
	s := t.slots[from.Slot]
	dim := t.cfg.Dim
	first := len(rows.IDs)
	defer func() {
		if n := len(rows.IDs) - first; n > 0 {
			rows.Spans = append(rows.Spans, Span{Slot: from.Slot, Rows: uint32(n)})
		}
	}()
	s.Lock()
	defer s.Unlock()
	if s.Moved() {
		return 0, false, t.slotError(from.Slot, partition.ErrMoved)
	}
	for row := from.Row; row < s.end; row++ {
		r := s.at(row)
		if *r.version() == 0 {
			continue
		}
		if BatchBytes(len(rows.Spans)+1, len(rows.IDs)+1, dim) > limit {
			return row, false, nil
		}
		rows.IDs = append(rows.IDs, r.id())
		rows.Values = append(rows.Values, t.arena.floats(r)[:dim]...)
	}
	return 0, true, nil
}

// First fills row, of Dim floats, with the values that the row of an id starts with.
func (c Config) First(row []float32, id int64) { newInitializer(c).fill(row, id) }
