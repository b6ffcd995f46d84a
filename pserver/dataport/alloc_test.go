//go:build !race

package dataport

import (
	"testing"

	"trainmaster/pserver/wire"
)

// A frame of a push must not allocate (the race detector allocates, so `make test` runs this test without it): the sink of a reply is an interface, and a reply in a local variable would be allocated.
func TestPushOfABlockAllocatesNothing(t *testing.T) {
	for _, op := range []wire.Op{wire.Push, wire.PushPull} {
		t.Run(op.String(), func(t *testing.T) {
			c, buf := sharingConn(t, false)
			b := c.view.Blocks()[0]
			step := uint64(0)
			push := func() {
				step++
				clear(buf.floats[:b.Len])
				c.head = wire.Header{Op: op, DType: wire.Float32, Block: b.ID, Length: uint32(4 * b.Len), Incarnation: 1, Placement: c.view.Model().Placement.Epoch, ShardEpoch: 1, JobEpoch: 1, Step: step, Sequence: step}
				c.out = answer(&c.head, c.shard.Epoch())
				if fault := c.handle(buf, true, &c.out); fault != nil {
					t.Fatal(fault)
				}
			}
			push()
			if n := testing.AllocsPerRun(100, push); n != 0 {
				t.Errorf("allocations of a push: expected 0, found %v", n)
			}
		})
	}
}
