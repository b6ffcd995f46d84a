package dataport

import (
	"testing"
	"testing/synctest"
	"time"

	"trainmaster/pserver/partition"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/wire"
)

// A push to a block or slot that is about to move waits on the server until the move is decided, and is then applied: the trainer sends the
// frame once. The wait ends with the wait of a pull, and with the connection.
func TestPushToMovingBlockOrRowsWaitsForTheMove(t *testing.T) {
	const decided = 700 * time.Millisecond // within the wait of a pull
	pushes := map[string]func(t *testing.T, c *conn, buf *buffer) (freeze, thaw func(), push func() *wire.Fault){
		"block": func(t *testing.T, c *conn, buf *buffer) (freeze, thaw func(), push func() *wire.Fault) {
			b := c.view.Blocks()[0]
			c.head = headerOf(c, wire.Push, wire.Float32)
			c.head.Length = uint32(4 * b.Len)
			placed := c.view.Model().Placement
			return func() {
					if err := c.shard.Freeze(t.Context(), core.Move{Term: 1, Epoch: placed.Epoch + 1}, []partition.ID{partition.Block(b.ID)}, time.Now()); err != nil {
						t.Fatal(err)
					}
				}, func() {
					if _, err := c.shard.Settle(1, placement.LayoutOf(placed, placed.Shards), nil, time.Now()); err != nil {
						t.Error(err)
					}
				}, func() *wire.Fault { return c.push(b, buf, &reply{}) }
		},
		"rows": func(t *testing.T, c *conn, buf *buffer) (freeze, thaw func(), push func() *wire.Fault) {
			payload, _ := rowsIn(buf, 1, 2)
			c.head = headerOf(c, wire.PushRows, wire.RowBatch)
			c.head.Length = uint32(len(payload))
			f, fault := c.checkRows(buf, &wire.Index{})
			if fault != nil {
				t.Fatal(fault)
			}
			slot := c.view.Tables()[0].Partition(1)
			return slot.Freeze, slot.Thaw, func() *wire.Fault { return c.pushRows(f, &reply{}) }
		},
	}
	for name, begin := range pushes {
		for what, end := range map[string]struct {
			after   time.Duration // the move is decided then, or the connection is closed; 0: neither
			closes  bool
			waits   time.Duration
			applied bool
		}{
			"decided":           {after: decided, waits: decided, applied: true},
			"connection closed": {after: decided, closes: true, waits: decided},
			"undecided":         {waits: time.Second},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c, buf := sharingConn(t, false)
					stop := make(chan struct{})
					c.stop = stop
					freeze, thaw, push := begin(t, c, buf)
					freeze()
					if end.after > 0 {
						time.AfterFunc(end.after, func() {
							if end.closes {
								close(stop)
							} else {
								thaw()
							}
						})
					}
					began := time.Now()
					fault := push()
					if took := time.Since(began); took != end.waits { // virtual time
						t.Errorf("expected an answer after %v, found it after %v", end.waits, took)
					}
					if end.applied && fault != nil || !end.applied && (fault == nil || fault.Code != wire.Wait) {
						t.Errorf("expected applied %v, found %v", end.applied, fault)
					}
				})
			})
		}
	}
}

// A refusal without a known end is answered at once.
func TestOtherRefusalsAreAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := sharingConn(t, false)
		began := time.Now()
		for _, refused := range []*core.Refusal{nil, core.Refuse(core.Frozen, "moves"), core.Refuse(core.Moved, "moved")} {
			if c.await(refused) {
				t.Errorf("%v: expected no other attempt", refused)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("expected answers at once, found them after %v", took)
		}
	})
}

// headerOf returns the header of the first update of the trainer of a connection.
func headerOf(c *conn, op wire.Op, values wire.DType) wire.Header {
	return wire.Header{
		Op: op, DType: values, Incarnation: 1, Placement: c.view.Model().Placement.Epoch, ShardEpoch: 1, JobEpoch: 1, Step: 1, Sequence: 1,
	}
}
