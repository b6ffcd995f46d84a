package pserver_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/floats"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params"
)

// A step above 2³¹-1 stops the clock of a slot, so its rows would never expire. The client refuses it before it sends a message. The server
// refuses it from another client. Tables without expiry accept it.
func TestStepBeyondTheClockOfATableIsRefused(t *testing.T) {
	const beyond = 1 << 31
	expiring, kept := params.Table{Name: "expiring", Dim: 1, Init: params.Zeros, Expiry: 4}, params.Table{Name: "kept", Dim: 1, Init: params.Zeros}
	book := startServers(t, 1, pserver.Config{})
	c := connect(t, book, params.Config{Mode: params.Async, Tables: []params.Table{expiring, kept}, Optimizer: plainSGD})
	mustInit(t, c, little())
	addrs, err := book.complete(within(t))
	if err != nil {
		t.Fatal(err)
	}
	counters := func() *pb.ParameterServerCounters {
		t.Helper()
		reply, err := control(t, addrs[0]).Describe(within(t), &pb.DescribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetCounters()
	}
	old, other := int64(0), int64(1)
	for table.SlotOf(other) != table.SlotOf(old) { // a slot expires its rows before an update
		other++
	}
	push := func(table params.Table, step uint64, id int64) error {
		return c.PushRows(within(t), table.Name, step, 1, []int64{id}, []float32{-2})
	}
	must(t, push(expiring, 1, old))

	const want = `table "expiring" with expiry 4: expected a step of at most 2147483647, found `
	for _, step := range []uint64{beyond, 1 << 40, 1<<64 - 1} {
		if err := push(expiring, step, old); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("step %d: found %v, expected an error with %q", step, err, want)
		}
	}
	if n := counters(); n.GetRefused() != 0 || n.GetRowsPushed() != 1 {
		t.Errorf("the client sent a step that it must refuse: %v", n)
	}

	placed, err := placement.New([]placement.Tensor{{Name: "b", Shape: []int{2}}}, 1, expiring, kept)
	if err != nil {
		t.Fatal(err)
	}
	digest := placed.Digest()
	p := dial(t, addrs[0])
	head, _, err := p.ask(wire.Header{Op: wire.Hello, Block: 9, Incarnation: 9}, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	payload, r := wire.Layout(floats.Bytes(make([]float32, 64)), 1, 1, 1)
	wire.Number(payload, 0, 1)
	r.Spans[0], r.IDs[0], r.Values[0] = table.Span{Slot: table.SlotOf(old), Rows: 1}, old, 1
	_, _, err = p.ask(wire.Header{Op: wire.PushRows, DType: wire.RowBatch, Incarnation: 9, Placement: head.Placement, ShardEpoch: head.ShardEpoch, JobEpoch: head.JobEpoch, Step: beyond}, payload)
	var fault *wire.Fault
	if !errors.As(err, &fault) || fault.Code != wire.BadRows || !strings.Contains(fault.Message, want) {
		t.Errorf("the server answers %v, expected %v with %q", err, wire.BadRows, want)
	}
	if n := counters(); n.GetRefused() != 1 || n.GetRowsPushed() != 1 {
		t.Errorf("counters %v: expected one refused push, and one applied push", n)
	}
	if got := rowsOf(t, c, expiring, []int64{old, other}, 0); !slices.Equal(got, []float32{1, 0}) {
		t.Errorf("rows are %v after refused pushes, expected 1 and 0", got)
	}

	must(t, push(expiring, 20, other)) // 19 steps after the update of the old row
	if got := rowsOf(t, c, expiring, []int64{old, other}, 0); !slices.Equal(got, []float32{0, 1}) {
		t.Errorf("rows are %v, expected that the first row has expired", got)
	}
	for _, step := range []uint64{beyond, 1 << 40} {
		must(t, push(kept, step, old))
	}
	if got := rowsOf(t, c, kept, []int64{old}, 0); got[0] != 2 {
		t.Errorf("row of a table without expiry is %v, expected 2", got[0])
	}
}
