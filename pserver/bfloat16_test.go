package pserver_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"trainmaster/pserver"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params"
)

// rounded returns tensors rounded to bfloat16.
func rounded(list []params.Tensor) []params.Tensor {
	for _, t := range list {
		narrow := make([]byte, 2*len(t.Data))
		wire.Narrow(narrow, t.Data)
		wire.Widen(t.Data, narrow)
	}
	return list
}

// Gradients arrive rounded, the server updates in float32, and the reply is rounded. A loop with the same roundings has the same bits.
func TestBFloat16PushPull(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	c := connect(t, book, params.Config{Mode: params.Async, Optimizer: heavy, WireDType: params.BFloat16})
	exact := connect(t, book, params.Config{Mode: params.Async, Optimizer: heavy, Ordinal: 1})
	values, want, velocity := tensors(random(1)), tensors(random(1)), tensors(constant(0))
	mustInit(t, c, values)
	mustInit(t, exact, tensors(constant(0)))
	if err := differ(values, rounded(tensors(random(1)))); err != nil {
		t.Errorf("first parameters: %v", err)
	}
	for step := uint64(1); step <= 3; step++ {
		grads := tensors(random(step + 50))
		if _, err := c.PushPull(within(t), step, 1, grads, values); err != nil {
			t.Fatal(err)
		}
		if err := differ(grads, tensors(random(step+50))); err != nil {
			t.Errorf("the caller's gradients were changed: %v", err)
		}
		for i, g := range rounded(grads) {
			for j, g := range g.Data {
				v := &velocity[i].Data[j]
				*v = float32(heavy.Momentum**v) + g
				want[i].Data[j] -= float32(heavy.LearningRate * *v)
			}
		}
		whole := tensors(constant(0))
		if _, err := exact.Pull(within(t), whole, 0); err != nil {
			t.Fatal(err)
		}
		if err := differ(whole, want); err != nil {
			t.Errorf("step %d, at the servers: %v", step, err)
		}
		if err := differ(values, rounded(whole)); err != nil {
			t.Errorf("step %d, at the trainer: %v", step, err)
		}
	}
}

// A sum that was staged as bfloat16 is widened and added to a sum in float32.
func TestBFloat16Stage(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	m := newMaster(t, book)
	half := connect(t, book, params.Config{Mode: params.Sync, Optimizer: plainSGD, WireDType: params.BFloat16})
	whole := connect(t, book, params.Config{Mode: params.Sync, Optimizer: plainSGD, Ordinal: 1})
	mustInit(t, half, tensors(random(1)))
	mustInit(t, whole, tensors(random(1)))
	for i, c := range []*params.Client{half, whole} {
		if err := c.Stage(within(t), 0, tensors(random(uint64(i)+10)), 4); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.commit(within(t), 1, by(0, 4), by(1, 4)); err != nil {
		t.Fatal(err)
	}
	want, first, second := tensors(random(1)), rounded(tensors(random(10))), tensors(random(11))
	for i := range want {
		for j := range want[i].Data {
			mean := float32((first[i].Data[j] + second[i].Data[j]) * 0.125)
			want[i].Data[j] -= float32(plainSGD.LearningRate * mean)
		}
	}
	got := tensors(constant(0))
	if _, err := whole.Pull(within(t), got, 1); err != nil {
		t.Fatal(err)
	}
	if err := differ(got, want); err != nil {
		t.Error(err)
	}
	if _, err := half.Pull(within(t), got, 1); err != nil {
		t.Fatal(err)
	}
	if err := differ(got, rounded(want)); err != nil {
		t.Error(err)
	}
}

func TestBFloat16Frames(t *testing.T) {
	bothWays(t, pserver.Config{}, bfloat16Frames)
}

func bfloat16Frames(t *testing.T, addr string, c *params.Client) {
	p := dial(t, addr).sayHello(0, 1)
	p.head.DType = wire.BFloat16
	halves := func(n, at int, h uint16) []byte {
		b := make([]byte, 2*n)
		for i := range n {
			binary.LittleEndian.PutUint16(b[2*i:], 0x3f80) // 1
		}
		binary.LittleEndian.PutUint16(b[2*at:], h)
		return b
	}
	for name, try := range map[string]struct {
		op      wire.Op
		block   uint64
		payload []byte
		code    wire.Code
		text    string
	}{
		"NaN":             {wire.PushPull, blockW1Last, halves(lenLast, 7, 0x7fc0), wire.NotFinite, `tensor "w1", elements 524288 to 600000): element 524295 is NaN`},
		"infinity":        {wire.Push, blockB1, halves(lenB1, 999, 0xff80), wire.NotFinite, `element 999 is -Inf`},
		"odd":             {wire.PushPull, blockB1, halves(lenB1, 0, 0)[1:], wire.BadLength, "payload has 1999 bytes, expected 2000 of bfloat16"},
		"too short":       {wire.PushPull, blockB1, halves(lenB1-1, 0, 0), wire.BadLength, "payload has 1998 bytes, expected 2000 of bfloat16"},
		"more than it is": {wire.PushPull, 3, make([]byte, wire.MaxPayload-2), wire.BadLength, "expected 524288 of bfloat16"},
		"whole payload":   {wire.PushPull, 3, make([]byte, wire.MaxPayload), wire.BadLength, "payload has 1048576 bytes, expected 524288 of bfloat16"},
		"nothing":         {wire.PushPull, blockB1, nil, wire.BadLength, "0 bytes"},
		"put":             {wire.Put, blockB1, halves(lenB1, 0, 0), wire.BadDType, "payload is bfloat16, expected float32"},
	} {
		t.Run(name, func(t *testing.T) {
			head := p.head
			head.Op, head.Block, head.Step = try.op, try.block, 1
			_, _, err := p.ask(head, try.payload)
			var fault *wire.Fault
			if !errors.As(err, &fault) || fault.Code != try.code || !strings.Contains(fault.Message, try.text) {
				t.Errorf("answered %v, expected %v with %q", err, try.code, try.text)
			}
		})
	}
	unchanged(t, c)

	head := p.head
	head.Op, head.Block = wire.Pull, blockB1
	if reply, payload, err := p.ask(head, nil); err != nil || reply.DType != wire.BFloat16 || len(payload) != 2*lenB1 {
		t.Errorf("pulled %d bytes of %v, %v; expected %d of bfloat16", len(payload), reply.DType, err, 2*lenB1)
	}
	head.DType = wire.Bytes
	if reply, payload, err := p.ask(head, nil); err != nil || reply.DType != wire.Float32 || len(payload) != 4*lenB1 {
		t.Errorf("pulled %d bytes of %v, %v; expected %d of float32", len(payload), reply.DType, err, 4*lenB1)
	}
	head.Op, head.DType, head.Step, head.Block = wire.Push, wire.BFloat16, 1, blockB1
	if reply, payload, err := p.ask(head, halves(lenB1, 0, 0)); err != nil || len(payload) != 0 || reply.DType != wire.Bytes {
		t.Errorf("push: %v, answered with %d bytes of %v", err, len(payload), reply.DType)
	}
}
