package shards

import (
	"fmt"
	"math"
	"slices"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/plan"
	"trainmaster/trainer/params/stream"
)

// RowCall is one operation on rows of a table, on all shards.
type RowCall struct {
	request
	set    *Set
	number int // of the table
	table  table.Config
	ids    []int64
	grads  []float32 // [ids, dim], nil in a lookup
	dst    []float32 // [ids, dim], nil but in a lookup
}

// rowFrame is a frame that a call sends to a shard: some slots with the ids that belong there.
type rowFrame struct {
	plan.Frame
	stream.Progress
}

// Rows returns a call on the rows of ids in a table: a lookup that fills dst, or an operation that sends grads, with the gradients of
// repeated ids summed. It is valid until the next call of Rows. A NaN or an infinity in grads is an error.
func (set *Set) Rows(op wire.Op, name string, step uint64, argument uint32, ids []int64, grads, dst []float32) (*RowCall, error) {
	call := &RowCall{request: request{op: op, step: step, argument: argument}, set: set, ids: ids, grads: grads, dst: dst}
	if err := call.findTable(name); err != nil {
		return nil, err
	}
	values, dim := grads, call.table.Dim
	if op == wire.LookupRows {
		values = dst
	}
	if len(values) != len(ids)*dim {
		return nil, fmt.Errorf("table %q: %d floats for %d ids: expected %d for each", name, len(values), len(ids), dim)
	}
	if len(ids) > math.MaxInt32 {
		return nil, fmt.Errorf("table %q: %d ids: expected at most %d", name, len(ids), math.MaxInt32)
	}
	if err := call.plan(); err != nil {
		return nil, err
	}
	//guard:client-checks-table-step
	if op == wire.PushRows {
		if err := call.table.CheckStep(step); err != nil {
			return nil, err
		}
	}
	if !floats.Finite(grads) {
		i := floats.FirstNotFinite(grads)
		return nil, plan.NotFinite(name, fmt.Sprintf("element %d of id %d is %v", i%dim, ids[i/dim], grads[i]))
	}
	if op != wire.LookupRows {
		var err error
		if call.grads, err = set.rows.Sum(ids, grads, dim); err != nil {
			return nil, plan.NotFinite(name, err.Error())
		}
	}
	return call, nil
}

// FillRepeats copies the rows of a lookup to the other positions of repeated ids.
func (call *RowCall) FillRepeats() { call.set.rows.Fill(call.dst, call.table.Dim) }

// findTable sets the table by its name.
func (call *RowCall) findTable(name string) error {
	set := call.set
	if set.table == nil {
		return errNotInitialized
	}
	for k, t := range set.table.Sparse {
		if t.Name == name {
			call.number, call.table = k, t
			return nil
		}
	}
	return fmt.Errorf("no table %q among the %d of params.Config.Tables", name, len(set.table.Sparse))
}

// plan sorts the ids by slot and gives every shard its frames.
func (call *RowCall) plan() error {
	set, p := call.set, &call.set.rows
	p.Sort(&call.table, call.ids)
	for _, s := range set.shards {
		s.rows = s.rows[:0]
	}
	most := wire.MostRows(call.table.Dim)
	for slot := range uint32(table.Slots) {
		places := p.Slot(slot)
		if len(places) > most && call.op != wire.LookupRows {
			return fmt.Errorf(
				"table %q: %d of the %d different ids are of slot %d, which goes in one frame, and a frame has room for %d: make the batch smaller",
				call.table.Name, len(places), len(call.ids)-p.Repeats(), slot, most)
		}
		s := set.shards[set.table.SlotOwners[call.number][slot]]
		for len(places) > 0 {
			n, last := min(len(places), most), len(s.rows)-1
			span := table.Span{Slot: slot, Rows: uint32(n)}
			if last < 0 || !s.rows[last].Add(span, places[:n], call.table.Dim) {
				s.rows = slices.Grow(s.rows, 1)[:last+2] // with the slices of an earlier call
				s.rows[last+1].Progress = stream.Progress{}
				s.rows[last+1].Reset(span, places[:n])
			}
			places = places[n:]
		}
	}
	if call.op == wire.StageRows {
		for _, s := range set.shards {
			if len(s.rows) == 0 {
				s.rows = append(s.rows, rowFrame{})
			}
		}
	}
	return nil
}

// moved repeats the whole call, by the later placement. A slot that has the step ignores the repetition, since its last applied step
// moved with the slot.
func (call *RowCall) moved() error { return call.plan() }

func (call *RowCall) frames(s *shard) []stream.Frame {
	dim := call.table.Dim
	fill := func(f *stream.Frame, body []byte) []byte { return s.fillRows(call, f.Index, body) }
	take := func(f *stream.Frame, r *stream.Reply) error {
		places := s.rows[f.Index].Places
		var values []float32
		if call.dst != nil {
			s.incoming = grown(s.incoming, len(places)*dim)
			values = s.incoming
		}
		if err := r.Floats(values, wire.Float32); err != nil {
			return err
		}
		for k, place := range places[:len(values)/dim] {
			copy(call.dst[int(place)*dim:(int(place)+1)*dim], values[k*dim:])
		}
		return nil
	}
	frames := s.frames[:0]
	for i := range s.rows {
		row := &s.rows[i]
		frames = append(frames, stream.Frame{
			Progress: &row.Progress, Index: i, Size: wire.RowsSize(len(row.Spans), len(row.Places), dim), Fill: fill, Take: take,
			Head: wire.Header{Op: call.op, DType: wire.RowBatch, Block: uint64(call.number), Argument: call.argument, Step: call.step, Version: call.version},
		})
	}
	return frames
}

// fillRows writes the rows of a frame to body, or to memory of the shard.
func (s *shard) fillRows(call *RowCall, i int, body []byte) []byte {
	f, dim, width := &s.rows[i], call.table.Dim, call.table.Dim
	if call.grads == nil {
		width = 0
	}
	if body == nil {
		s.outgoing = grown(s.outgoing, (wire.RowsSize(len(f.Spans), len(f.Places), width)+3)/4)
		body = floats.Bytes(s.outgoing)
	}
	payload, rows := wire.Layout(body, len(f.Spans), len(f.Places), width)
	if call.op == wire.StageRows {
		wire.Number(payload, uint32(i), uint32(len(s.rows)))
	} else {
		wire.Number(payload, 0, 1)
	}
	copy(rows.Spans, f.Spans)
	for k, place := range f.Places {
		rows.IDs[k] = call.ids[place]
		if width > 0 {
			copy(rows.Values[k*dim:(k+1)*dim], call.grads[int(place)*dim:])
		}
	}
	return payload
}

// grown is s with n elements of any value, in the same memory if it has room.
func grown(s []float32, n int) []float32 { return slices.Grow(s[:0], n)[:n] }
