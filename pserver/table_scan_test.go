package pserver_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"trainmaster/pserver"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params"
)

// A scan has every row that was updated once, whether a frame has room for many slots or not even for one.
func TestScan(t *testing.T) {
	wide := params.Table{Name: "wide", Dim: 8000, Init: params.Uniform, Scale: 1}
	book := startServers(t, 2, pserver.Config{})
	c := connect(t, book, params.Config{Mode: params.Async, Optimizer: params.Optimizer{Kind: "adam"}, Tables: []params.Table{users, wide}})
	mustInit(t, c, little())
	inOneSlot := []int64{}
	for id := int64(0); len(inOneSlot) < 70; id++ { // 32 of them fill a frame
		if table.SlotOf(id) == 700 {
			inOneSlot = append(inOneSlot, id)
		}
	}
	for table, ids := range map[params.Table][]int64{users: everyID(30_000), wide: inOneSlot} {
		t.Run(table.Name, func(t *testing.T) {
			scan := func() map[int64][]float32 {
				got := map[int64][]float32{}
				if err := c.Scan(within(t), table.Name, func(ids []int64, values []float32) error {
					for k, id := range ids {
						if got[id] != nil {
							t.Errorf("id %d came twice", id)
						}
						got[id] = slices.Clone(values[k*table.Dim : (k+1)*table.Dim])
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				return got
			}
			if got := scan(); len(got) > 0 {
				t.Errorf("before any update there are %d rows", len(got))
			}
			for step := 0; step < len(ids); step += 10 { // a push has room for 32 rows of one slot, too
				batch := ids[step:min(step+10, len(ids))]
				if table == users {
					if step > 0 {
						break
					}
					batch = ids
				}
				if err := c.PushRows(within(t), table.Name, uint64(step+1), 1, batch, slices.Repeat([]float32{0.5}, len(batch)*table.Dim)); err != nil {
					t.Fatal(err)
				}
			}
			want := map[int64][]float32{}
			values := rowsOf(t, c, table, ids, 0)
			for k, id := range ids {
				want[id] = values[k*table.Dim : (k+1)*table.Dim]
			}
			if got := scan(); !maps.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%d rows, expected %d with the values that a lookup finds", len(got), len(want))
			}
		})
	}
	stop := errors.New("enough")
	if err := c.Scan(within(t), users.Name, func([]int64, []float32) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a scan that its caller ends gave %v", err)
	}
	if err := c.Scan(within(t), "nobody", nil); err == nil {
		t.Error("a scan of no table gave no error")
	}
}

func TestScanRefused(t *testing.T) {
	book := startServers(t, 1, pserver.Config{})
	connectTables(t, book, params.Config{Mode: params.Async})
	placed, err := placement.New([]placement.Tensor{{Name: "b", Shape: []int{2}}}, 1, users, words)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := book.complete(within(t))
	if err != nil {
		t.Fatal(err)
	}
	digest := placed.Digest()
	for want, change := range map[wire.Code]func(*wire.Header) []byte{
		wire.NoSuchTable: func(h *wire.Header) []byte { h.Block = 2; return nil },
		wire.BadLength:   func(*wire.Header) []byte { return make([]byte, 8) },
		wire.Malformed:   func(h *wire.Header) []byte { h.Argument = table.Slots; return nil },
	} {
		p := dial(t, addrs[0])
		hello, _, err := p.ask(wire.Header{Op: wire.Hello, Block: 9, Incarnation: 9}, digest[:])
		if err != nil {
			t.Fatal(err)
		}
		head := wire.Header{Op: wire.ScanRows, Incarnation: 9, Placement: hello.Placement, ShardEpoch: hello.ShardEpoch, JobEpoch: hello.JobEpoch}
		_, _, err = p.ask(head, change(&head))
		if fault := new(wire.Fault); !errors.As(err, &fault) || fault.Code != want {
			t.Errorf("answer %v, expected %v", err, want)
		}
	}
}

// A synchronous trainer reads the tables at the end, too.
func TestScanSync(t *testing.T) {
	book := startServers(t, 1, pserver.Config{})
	c := connectTables(t, book, params.Config{Mode: params.Sync})
	if err := c.Scan(within(t), users.Name, func([]int64, []float32) error { return nil }); err != nil {
		t.Error(err)
	}
}
