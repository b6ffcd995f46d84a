package plan

import (
	"trainmaster/pserver/table"
)

// Scan assembles whole slots from the frames of a scan of a table, so that a slot of which only a part was read can be read again from
// another server. Yield receives the rows of each slot once, with values of shape [ids, Dim].
type Scan struct {
	Dim   int
	Yield func(ids []int64, values []float32) error
	Done  [table.Slots]bool // the slots that were read, also of earlier owners

	open   uint32 // the slot of which there are rows here, and more to come
	ids    []int64
	values []float32
}

// Drop forgets the rows of a slot that was read in part.
func (s *Scan) Drop() { s.ids, s.values = s.ids[:0], s.values[:0] }

// Take yields the rows of slots that are not done, except slot next, whose rows continue in the next frame.
func (s *Scan) Take(rows *table.Batch, next uint32) error {
	k, dim := 0, s.Dim
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
		case s.Done[span.Slot]:
		case span.Slot == next || len(s.ids) > 0 && span.Slot == s.open:
			s.open, s.ids, s.values = span.Slot, append(s.ids, ids...), append(s.values, values...)
		default:
			if err := s.Yield(ids, values); err != nil {
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
func (s *Scan) flush() error {
	if len(s.ids) == 0 {
		return nil
	}
	defer s.Drop()
	return s.Yield(s.ids, s.values)
}
