package params

import (
	"context"
	"fmt"
	"math"
	"slices"

	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/plan"
	"trainmaster/trainer/params/stream"
)

// Table is a table of embeddings: rows of Dim float32 by int64 id. It belongs to the job: all trainers give the same.
type Table = table.Config

// The initializers of a Table.
const (
	Zeros   = table.Zeros
	Uniform = table.Uniform
	Normal  = table.Normal
)

// rowCall is one operation on rows of a table, on all shards.
type rowCall struct {
	request
	client *Client
	number int // of the table
	table  Table
	ids    []int64
	grads  []float32 // [ids, dim], nil in a lookup
	dst    []float32 // [ids, dim], nil but in a lookup
}

// rowFrame is a frame that a call sends to a shard: some slots with the ids that belong there.
type rowFrame struct {
	plan.Frame
	plan.Progress
}

// Lookup fills dst, of shape [ids, dim], with the rows of ids, in their order; ids may repeat. A row without updates has its initial
// value, and a lookup creates no row. In mode Sync it waits for minVersion, and all rows have the returned version, which may
// be later: pull the other parameters of that version then. In mode Async each row is consistent, and the version is 0.
// Without ids Lookup returns minVersion and does not wait.
func (c *Client) Lookup(ctx context.Context, table string, ids []int64, dst []float32, minVersion uint64) (version uint64, err error) {
	call := &rowCall{request: request{op: wire.LookupRows}, ids: ids, dst: dst}
	if err := c.prepareRows(table, call, dst); err != nil {
		return 0, fmt.Errorf("lookup: %w", err)
	}
	if len(ids) == 0 {
		return minVersion, nil
	}
	if version, err = c.fetch(ctx, call, minVersion); err != nil {
		return 0, fmt.Errorf("lookup: %w", err)
	}
	c.rows.Fill(dst, call.table.Dim)
	return version, nil
}

// PushRows sends the gradients of some rows, of shape [ids, dim], each the mean over the batch. Gradients of a repeated id are
// summed in their order before they are sent. Only these rows change. Steps start at 1 and grow, one push for each table and step.
// An earlier step counts as a repetition and is not applied. scale is as in PushPull.
func (c *Client) PushRows(ctx context.Context, table string, step uint64, scale float32, ids []int64, grads []float32) error {
	if err := c.checkPush("push rows", step, scale); err != nil {
		return err
	}
	return c.sendRows(ctx, "push rows", table, &rowCall{request: request{op: wire.PushRows, step: step, argument: math.Float32bits(scale)}, ids: ids, grads: grads})
}

// StageRows stages gradients of rows, each the sum over records, as Stage does for tensors. A commit needs both from each
// contributor: a trainer stages every table in every version, without ids if it touched no row.
func (c *Client) StageRows(ctx context.Context, table string, version uint64, ids []int64, grads []float32, records int) error {
	if err := c.checkStage("stage rows", records); err != nil {
		return err
	}
	return c.sendRows(ctx, "stage rows", table, &rowCall{request: request{op: wire.StageRows, step: version, argument: uint32(records)}, ids: ids, grads: grads})
}

func (c *Client) sendRows(ctx context.Context, what, table string, call *rowCall) error {
	if err := c.prepareRows(table, call, call.grads); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !wire.Finite(call.grads) {
		i, dim := wire.FirstNotFinite(call.grads), call.table.Dim
		return fmt.Errorf("%s: table %q: element %d of id %d is %v", what, table, i%dim, call.ids[i/dim], call.grads[i])
	}
	var err error
	if call.grads, err = c.rows.Sum(call.ids, call.grads, call.table.Dim); err != nil {
		return fmt.Errorf("%s: table %q: %w", what, table, err)
	}
	if err := c.do(ctx, call, nil); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// prepareRows finds the table, checks the shapes and makes the frames.
func (c *Client) prepareRows(table string, call *rowCall, values []float32) error {
	call.client = c
	if err := c.findTable(table, call); err != nil {
		return err
	}
	if len(values) != len(call.ids)*call.table.Dim {
		return fmt.Errorf("table %q: %d floats for %d ids: expected %d for each", table, len(values), len(call.ids), call.table.Dim)
	}
	if len(call.ids) > math.MaxInt32 {
		return fmt.Errorf("table %q: %d ids: expected at most %d", table, len(call.ids), math.MaxInt32)
	}
	return c.planRows(call)
}

// findTable sets the table of a call by its name.
func (c *Client) findTable(name string, call *rowCall) error {
	if c.table == nil {
		return errNotInitialized
	}
	for k, t := range c.table.Sparse {
		if t.Name == name {
			call.number, call.table = k, t
			return nil
		}
	}
	return fmt.Errorf("no table %q among the %d of params.Config.Tables", name, len(c.table.Sparse))
}

// planRows sorts the ids by slot and gives every link its frames.
func (c *Client) planRows(call *rowCall) error {
	p := &c.rows
	p.Sort(&call.table, call.ids)
	for _, s := range c.shards {
		s.rows = s.rows[:0]
	}
	most := wire.MostRows(call.table.Dim)
	for slot := range uint32(table.Slots) {
		places := p.Slot(slot)
		if len(places) > most && call.op != wire.LookupRows {
			return fmt.Errorf("table %q: %d of the %d different ids are of slot %d, which goes in one frame, and a frame has room for %d: make the batch smaller",
				call.table.Name, len(places), len(call.ids)-p.Repeats(), slot, most)
		}
		s := c.shards[c.table.SlotOwners[call.number][slot]]
		for len(places) > 0 {
			n := min(len(places), most)
			s.addRows(wire.Span{Slot: slot, Rows: uint32(n)}, places[:n], call.table.Dim)
			places = places[n:]
		}
	}
	if call.op == wire.StageRows {
		for _, s := range c.shards {
			if len(s.rows) == 0 {
				s.rows = append(s.rows, rowFrame{})
			}
		}
	}
	return nil
}

// addRows adds a slot's rows to the last frame, or to a new one.
func (s *shard) addRows(span wire.Span, places []int32, dim int) {
	n := len(s.rows)
	if n > 0 && s.rows[n-1].Add(span, places, dim) {
		return
	}
	s.rows = slices.Grow(s.rows, 1)[:n+1]
	f := &s.rows[n]
	*f = rowFrame{Frame: f.Frame} // the slices of an earlier call
	f.Reset(span, places)
}

func (call *rowCall) parts(s *shard) int { return len(s.rows) }

func (call *rowCall) part(s *shard, i int) *plan.Progress { return &s.rows[i].Progress }

// moved repeats the whole call, by the later placement. A slot that has the step ignores the repetition, since its last applied step
// moved with the slot.
func (call *rowCall) moved() error { return call.client.planRows(call) }

func (call *rowCall) frames(s *shard, _ bool) []stream.Frame {
	f := stream.Frame{
		Head: wire.Header{Op: call.op, DType: wire.RowBatch, Block: uint64(call.number), Argument: call.argument, Step: call.step, Version: call.version},
		Fill: func(f *stream.Frame, body []byte) stream.Payload {
			return stream.Payload{Bytes: s.fillRows(call, f.Index, body)}
		},
		Take: func(f *stream.Frame, r *stream.Reply) error { return s.takeRows(call, &s.rows[f.Index], r) },
	}
	s.frames = s.frames[:0]
	for i := range s.rows {
		if row := &s.rows[i]; row.Pending {
			f.Index, f.Size = i, wire.RowsSize(len(row.Spans), len(row.Places), call.table.Dim)
			s.frames = append(s.frames, f)
		}
	}
	return s.frames
}

// fillRows writes the rows of a frame to body, or to memory of the shard.
func (s *shard) fillRows(call *rowCall, i int, body []byte) []byte {
	f, dim, width := &s.rows[i], call.table.Dim, call.table.Dim
	if call.grads == nil {
		width = 0
	}
	if body == nil {
		s.outgoing = grown(s.outgoing, (wire.RowsSize(len(f.Spans), len(f.Places), width)+3)/4)
		body = wire.FloatBytes(s.outgoing)
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

// takeRows reads the reply to a frame.
func (s *shard) takeRows(call *rowCall, f *rowFrame, r *stream.Reply) error {
	dim := call.table.Dim
	var values []float32
	if call.dst != nil {
		s.incoming = grown(s.incoming, len(f.Places)*dim)
		values = s.incoming
	}
	if err := r.Floats(values, wire.Float32); err != nil {
		return err
	}
	for k, place := range f.Places[:len(values)/dim] {
		copy(call.dst[int(place)*dim:(int(place)+1)*dim], values[k*dim:])
	}
	f.Pending, f.Version = false, r.Head.Version
	return nil
}

// grown is s with n elements of any value, in the same memory if it has room.
func grown(s []float32, n int) []float32 { return slices.Grow(s[:0], n)[:n] }
