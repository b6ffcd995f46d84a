package dataport

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// sharingConn is a connection of a ready shard, with one block, the table of sharedTable and shared memory.
func sharingConn(t *testing.T, sync bool) (*conn, *buffer) {
	t.Helper()
	table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{3 * core.PieceElements}}}, 1, sharedTable)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, sync, table)
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	s := core.New(nil, 0, 1, time.Minute, 1<<30)
	h := begin(t, s, m)
	who, fault := join(t, s, 0, 1)
	if fault != nil {
		t.Fatal(fault)
	}
	pool := &sharedPool{most: 1 << 30}
	memory, file, err := pool.take()
	if err != nil || memory == nil {
		t.Skipf("this system has no shared memory: %v", err)
	}
	file.Close()
	t.Cleanup(func() { pool.give(memory) })
	limits := &Limits{PullWait: time.Second}
	c := &conn{shard: s, view: h, trainer: who, shared: memory, log: logrus.NewEntry(log), limits: limits, buffers: newBuffers(wire.MaxPayload), stop: make(chan struct{})}
	c.slot = memory.slots[0]
	return c, c.slot
}

// rowsIn writes a payload with one row of 1 for each slot.
func rowsIn(buf *buffer, slots ...uint32) (payload []byte, r wire.Rows) {
	payload, r = wire.Layout(buf.bytes, len(slots), len(slots), sharedTable.Dim)
	wire.Number(payload, 0, 1)
	for i, slot := range slots {
		r.Spans[i], r.IDs[i] = table.Span{Slot: slot, Rows: 1}, idIn(slot)
	}
	for i := range r.Values {
		r.Values[i] = 1
	}
	return payload, r
}

// rowsOfTable are the ids that a table holds.
func rowsOfTable(t *testing.T, held *table.Table) (ids []int64) {
	t.Helper()
	var rows table.Batch
	if _, err := held.Scan(table.Place{}, wire.MaxBatch, &rows); err != nil {
		t.Fatal(err)
	}
	for _, v := range rows.Values {
		if v-v != 0 {
			t.Errorf("the table holds %v", v)
		}
	}
	return append(ids, rows.IDs...)
}

// The server applies exactly the batch of rows that it checked, even if the trainer changes its memory after the check.
func TestSharedRowsChangeAfterTheCheckIsHarmless(t *testing.T) {
	for name, change := range map[string]func(r wire.Rows){
		"slot beyond the last":  func(r wire.Rows) { r.Spans[1].Slot = 5000 },
		"more rows than a slot": func(r wire.Rows) { r.Spans[0].Rows = 1 << 30 },
		"id of another slot":    func(r wire.Rows) { r.IDs[1] = r.IDs[0] },
		"gradient not finite":   func(r wire.Rows) { r.Values[3] = float32(math.NaN()) },
	} {
		for _, op := range []wire.Op{wire.PushRows, wire.StageRows} {
			t.Run(name+"/"+op.String(), func(t *testing.T) {
				c, buf := sharingConn(t, op == wire.StageRows)
				payload, r := rowsIn(buf, 1, 2)
				c.head = wire.Header{Op: op, DType: wire.RowBatch, Length: uint32(len(payload)), Incarnation: 1, Placement: c.view.Model().Placement.Epoch, ShardEpoch: 1, JobEpoch: 1, Step: 1, Argument: 0, Sequence: 1}
				if op == wire.StageRows {
					c.head.Step, c.head.Argument = 0, 1
				}
				f, fault := c.checkRows(buf, &wire.Index{})
				if fault != nil {
					t.Fatal(fault)
				}
				change(r)
				defer func() {
					if err := recover(); err != nil {
						t.Errorf("panic: %v", err)
					}
				}()
				if op == wire.PushRows {
					fault = c.pushRows(f, &reply{})
				} else {
					fault = c.stageRows(f, &reply{})
				}
				spoiled := strings.Contains(name, "finite")
				if spoiled != (fault != nil) || fault != nil && fault.Code != wire.Malformed {
					t.Fatalf("answer %v", fault)
				}
				if op == wire.StageRows {
					b := c.view.Blocks()[0]
					if refused := c.shard.StageBlock(c.view, b, c.trainer, gradientOf(&c.head), core.Values{Floats: make([]float32, b.Len)}); refused != nil {
						t.Fatal(refused)
					}
					_, err := c.shard.Commit(1, 1, []core.Contributor{{Incarnation: 1, Records: 1}}, 1)
					if spoiled != errors.Is(err, core.ErrIncomplete) || !spoiled && err != nil {
						t.Errorf("commit of the stage: %v", err)
					}
				}
				ids := rowsOfTable(t, c.view.Tables()[0])
				if want := []int64{idIn(1), idIn(2)}; spoiled && len(ids) > 1 || !spoiled && (len(ids) != 2 || ids[0] != want[0] || ids[1] != want[1]) {
					t.Errorf("the table holds the ids %v, expected %v", ids, want)
				}
			})
		}
	}
}

// Gradients, stages and first parameters of a block are finite, however the trainer changes its memory after the check.
func TestSharedElementsChangeAfterTheCheckIsHarmless(t *testing.T) {
	for _, op := range []wire.Op{wire.Push, wire.PushPull, wire.Stage, wire.Put} {
		for _, at := range []int{0, core.PieceElements + 3, 3*core.PieceElements - 1} {
			t.Run(op.String(), func(t *testing.T) {
				c, buf := sharingConn(t, op == wire.Stage)
				b := c.view.Blocks()[0]
				for i := range b.Len {
					buf.floats[i] = 1
				}
				c.head = wire.Header{Op: op, DType: wire.Float32, Block: b.ID, Length: uint32(4 * b.Len), Incarnation: 1, Placement: c.view.Model().Placement.Epoch, ShardEpoch: 1, JobEpoch: 1, Step: 1, Sequence: 1}
				if op == wire.Put {
					s := core.New(nil, 0, 1, time.Minute, 1<<30)
					if _, _, _, err := s.Claim(c.view.Model(), 0, 1, time.Now()); err != nil {
						t.Fatal(err)
					}
					c.shard, c.view = s, s.View()
					b = c.view.Blocks()[0]
				}
				if _, fault := c.check(buf, true); fault != nil {
					t.Fatal(fault)
				}
				buf.floats[at] = float32(math.Inf(1))
				values, r := c.values(buf, b.Len), &reply{}
				if op == wire.PushPull {
					r.buf, r.head.DType = buf, wire.Float32
				}
				var fault *wire.Fault
				switch op {
				case wire.Put:
					fault = faultOf(c.shard.Put(c.view, b, 1, values, time.Now()))
				case wire.Stage:
					c.head.Step, c.head.Argument = 0, 1
					fault = faultOf(c.shard.StageBlock(c.view, b, c.trainer, gradientOf(&c.head), values))
				default:
					var out core.Sink
					if op == wire.PushPull {
						out = r
					}
					_, refused := c.shard.Push(c.view, b, c.trainer, core.Update{Step: 1, Scale: 1}, values, out)
					fault = faultOf(refused)
				}
				if fault == nil || fault.Code != wire.Malformed || !strings.Contains(fault.Message, `tensor "w"`) {
					t.Errorf("answer %v, expected malformed with the name of the tensor", fault)
				}
				b.Inspect(nil, func(params []float32, _, _ uint64) {
					if !floats.Finite(params) {
						t.Errorf("%v of the parameters is not finite", params[floats.FirstNotFinite(params)])
					}
				})
				if err := c.shard.Finish(1, false); op == wire.Put && !errors.Is(err, core.ErrIncomplete) {
					t.Errorf("the block counts as filled: %v", err)
				}
				if _, err := c.shard.Commit(1, 1, []core.Contributor{{Incarnation: 1, Records: 1}}, 1); op == wire.Stage && (err == nil || !strings.Contains(err.Error(), "staged 0 of 1 blocks")) {
					t.Errorf("the stage counts as present: %v", err)
				}
			})
		}
	}
}

// F17: a panic in a request ends one connection, with a line in the log. The server continues, and no lock is held.
func TestPanicOfARequestEndsOneConnection(t *testing.T) {
	c, _ := sharingConn(t, false)
	var text bytes.Buffer
	log := logrus.New()
	log.SetOutput(&text)
	here, there := net.Pipe()
	defer here.Close()
	bad := &conn{
		shard: c.shard, view: new(core.View), trainer: c.trainer, log: logrus.NewEntry(log), buffers: c.buffers, stop: c.stop,
		limits: &Limits{PullWait: time.Second, FrameTimeout: time.Minute, HelloTimeout: time.Minute}, nc: there, r: bufio.NewReader(there),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if err := recover(); err != nil {
				t.Errorf("panic outside of the request: %v", err)
				there.Close()
			}
		}()
		bad.serve()
	}()
	head := wire.Header{Op: wire.LookupRows, DType: wire.RowBatch, Incarnation: 1, Placement: c.view.Model().Placement.Epoch, ShardEpoch: 1, JobEpoch: 1, Sequence: 1}
	var raw [wire.HeaderSize]byte
	head.Encode(&raw)
	wire.Seal(&raw, nil)
	if _, err := here.Write(raw[:]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(here, raw[:]); err != nil {
		t.Fatal(err)
	}
	if err := head.Decode(&raw); err != nil || head.Flags&wire.Error == 0 || wire.Code(head.Argument) != wire.Failed {
		t.Errorf("reply %+v, %v", head, err)
	}
	io.Copy(io.Discard, here) //nolint:errcheck // until the server closes
	<-done
	if !strings.Contains(text.String(), "request failed") || !strings.Contains(text.String(), "checkShard") {
		t.Errorf("log: %q", text.String())
	}
	c.head = wire.Header{Op: wire.Pull, Block: c.view.Blocks()[0].ID, Incarnation: 1, Placement: c.view.Model().Placement.Epoch}
	c.slot = nil
	r := answer(&c.head, 1)
	if fault := c.handle(nil, true, &r); fault != nil {
		t.Errorf("another connection: %v", fault)
	}
	c.buffers.give(r.buf)
}
