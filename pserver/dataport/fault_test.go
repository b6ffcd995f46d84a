package dataport

import (
	"testing"

	core "trainmaster/pserver/shard"
	"trainmaster/pserver/wire"
)

func TestEachReasonOfARefusalHasACode(t *testing.T) {
	if want := int(core.OtherModel) + 1; len(faultCodes) != want {
		t.Fatalf("codes: expected %d, found %d", want, len(faultCodes))
	}
	for reason := core.Fenced; reason <= core.OtherModel; reason++ {
		if fault := faultOf(core.Refuse(reason, "reason %d", reason).At(7)); fault.Code == 0 || fault.Version != 7 {
			t.Errorf("reason %d: found %+v", reason, fault)
		}
	}
	if fault := faultOf(nil); fault != nil {
		t.Errorf("without a refusal: found %v", fault)
	}
}

// isRace reports whether the race detector is on.
var isRace bool

// A frame of a push must not allocate: the sink of a reply is an interface, and a reply in a local variable would be allocated.
func TestPushOfABlockAllocatesNothing(t *testing.T) {
	if isRace {
		t.Skip("the race detector allocates")
	}
	for _, op := range []wire.Op{wire.Push, wire.PushPull} {
		t.Run(op.String(), func(t *testing.T) {
			c, buf := sharingConn(t, false)
			b := c.holding.Blocks()[0]
			step := uint64(0)
			push := func() {
				step++
				clear(buf.floats[:b.Len])
				c.head = wire.Header{Op: op, DType: wire.Float32, Block: b.ID, Length: uint32(4 * b.Len), Incarnation: 1, Placement: c.holding.Model().Placement.Epoch, ShardEpoch: 1, JobEpoch: 1, Step: step, Sequence: step}
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
