package pserver_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/floats"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params"
)

var (
	users = params.Table{Name: "users", Dim: 4, Init: params.Uniform, Scale: 0.5, Seed: 3}
	words = params.Table{Name: "words", Dim: 3, Init: params.Normal, Scale: 0.1, Expiry: 6, Admission: 2}
)

// little is a minimal model without tables.
func little() []params.Tensor {
	return []params.Tensor{{Name: "b", Shape: []int{2}, Data: make([]float32, 2)}}
}

func connectTables(t testing.TB, b *book, cfg params.Config) *params.Client {
	t.Helper()
	cfg.Tables = []params.Table{words, users}
	c := connect(t, b, cfg)
	mustInit(t, c, little())
	return c
}

// rowBatch is ids of which some repeat, and gradients for them.
func rowBatch(seed uint64, n, dim int) (ids []int64, grads []float32) {
	r := rand.New(rand.NewPCG(seed, 7))
	for range n {
		ids = append(ids, r.Int64N(int64(n))-3)
	}
	for range n * dim {
		grads = append(grads, float32(r.NormFloat64()))
	}
	return ids, grads
}

// everyID returns the ids of rowBatch.
func everyID(n int) (ids []int64) {
	for id := range int64(n) {
		ids = append(ids, id-3)
	}
	return ids
}

func rowsOf(t testing.TB, c *params.Client, table params.Table, ids []int64, version uint64) []float32 {
	t.Helper()
	dst := make([]float32, len(ids)*table.Dim)
	if _, err := c.Lookup(within(t), table.Name, ids, dst, version); err != nil {
		t.Fatal(err)
	}
	return dst
}

// reference is a table in one process, for comparison with the tables of servers.
type reference struct {
	*table.Table
	trainers map[uint32]*partition.Trainer
}

func newReference(t testing.TB, cfg params.Table, o params.Optimizer) *reference {
	t.Helper()
	if err := errors.Join(cfg.Validate(), o.Validate()); err != nil {
		t.Fatal(err)
	}
	var all []uint32
	for slot := range uint32(table.Slots) {
		all = append(all, slot)
	}
	return &reference{table.New(cfg, o, all, func() *table.Cut { return nil }), map[uint32]*partition.Trainer{}}
}

// push applies a batch slot by slot, as it would be in frames of its own.
func (r *reference) push(t testing.TB, ordinal uint32, step uint64, ids []int64, grads []float32) {
	t.Helper()
	if r.trainers[ordinal] == nil {
		r.trainers[ordinal] = partition.NewTrainer(int(ordinal), 1)
	}
	dim := r.Config().Dim
	batches := map[uint32]*table.Batch{} // by slot
	for k, id := range ids {
		slot := table.SlotOf(id)
		batch := batches[slot]
		if batch == nil {
			batch = &table.Batch{Spans: []table.Span{{Slot: slot}}}
			batches[slot] = batch
		}
		batch.Spans[0].Rows++
		batch.IDs, batch.Values = append(batch.IDs, id), append(batch.Values, grads[k*dim:(k+1)*dim]...)
	}
	for _, batch := range batches {
		if _, err := r.Update(batch, r.trainers[ordinal], table.Step{Number: step, Scale: 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *reference) values(ids []int64) []float32 {
	dim := r.Config().Dim
	dst := make([]float32, len(ids)*dim)
	for k, id := range ids {
		r.Lookup(&table.Batch{Spans: []table.Span{{Slot: table.SlotOf(id), Rows: 1}}, IDs: []int64{id}}, nil, dst[k*dim:(k+1)*dim])
	}
	return dst
}

// Any number of shards gives, bit by bit, what one table in memory does, by both ways; a step that is sent again changes nothing.
func TestPushRows(t *testing.T) {
	for _, shards := range []int{1, 3} {
		for _, network := range []string{pserver.SocketAuto, pserver.SocketOff} {
			t.Run(fmt.Sprint(shards, network), func(t *testing.T) {
				book := startServers(t, shards, pserver.Config{DataSocket: network})
				o := params.Optimizer{Kind: optimizer.Adam}
				c := connectTables(t, book, params.Config{Mode: params.Async, Optimizer: o})
				d := connectTables(t, book, params.Config{Mode: params.Async, Optimizer: o, Ordinal: 1})
				for _, table := range []params.Table{users, words} {
					want := newReference(t, table, o)
					const n = 2000
					for step := uint64(1); step < 10; step++ {
						for ordinal, client := range []*params.Client{c, d} {
							ids, grads := rowBatch(step+uint64(ordinal)*100, n, table.Dim)
							want.push(t, uint32(ordinal), step, ids, slices.Clone(grads))
							for range 2 {
								if err := client.PushRows(within(t), table.Name, step, 1, ids, grads); err != nil {
									t.Fatal(err)
								}
							}
						}
					}
					if got := rowsOf(t, c, table, everyID(n), 0); !slices.Equal(got, want.values(everyID(n))) {
						t.Errorf("%s: other values than in memory", table.Name)
					}
				}
			})
		}
	}
}

// Two synchronous trainers: what they stage is summed in rank order, divided by the records, and applied once; a lookup waits for its
// version and has all rows of one.
func TestStageRows(t *testing.T) {
	const n, steps = 4000, 9
	book := startServers(t, 3, pserver.Config{})
	m := newMaster(t, book)
	o := params.Optimizer{Kind: optimizer.Adagrad}
	records := []uint32{10, 17}
	var group sync.WaitGroup
	staged := make(chan struct{})
	for ordinal := range 2 {
		group.Go(func() {
			c := connectTables(t, book, params.Config{Mode: params.Sync, Optimizer: o, Ordinal: uint32(ordinal)})
			for version := range uint64(steps) {
				for _, of := range []params.Table{users, words} {
					dst := make([]float32, n*of.Dim)
					if got, err := c.Lookup(within(t), of.Name, everyID(n), dst, version); err != nil || got != version {
						t.Errorf("lookup at version %d: %d, %v", version, got, err)
					}
					ids, grads := rowBatch(version*2+uint64(ordinal), n, of.Dim)
					if version == 4 && ordinal == 1 { // it touched none
						ids, grads = nil, nil
					}
					if version%3 == 1 { // staging again replaces, also what came in more frames
						many, other := rowBatch(99, 40_000, of.Dim)
						if err := c.StageRows(within(t), of.Name, version, many, other, int(records[ordinal])); err != nil {
							t.Error(err)
						}
					}
					for range 2 {
						if err := c.StageRows(within(t), of.Name, version, ids, grads, int(records[ordinal])); err != nil {
							t.Error(err)
						}
					}
				}
				if err := c.Stage(within(t), version, little(), int(records[ordinal])); err != nil {
					t.Error(err)
				}
				staged <- struct{}{}
			}
		})
	}
	want := map[string]*reference{}
	for _, of := range []params.Table{users, words} {
		want[of.Name] = newReference(t, of, o)
	}
	for version := range uint64(steps) {
		<-staged
		<-staged
		if err := m.commit(within(t), version+1, by(0, records[0]), by(1, records[1])); err != nil {
			t.Fatal(err)
		}
		for _, of := range []params.Table{users, words} {
			var shares [table.Slots][]table.Share
			for ordinal := range uint64(2) {
				ids, grads := rowBatch(version*2+ordinal, n, of.Dim)
				if version == 4 && ordinal == 1 {
					continue
				}
				own := map[int64][]float32{} // a client sums the gradients of an id that repeats, in their order
				for k, id := range ids {
					grad := grads[k*of.Dim : (k+1)*of.Dim]
					if sum := own[id]; sum != nil {
						for i := range sum {
							sum[i] += grad[i]
						}
						continue
					}
					own[id] = grad
					slot := table.SlotOf(id)
					shares[slot] = append(shares[slot], table.Share{IDs: []int64{id}, Grads: grad})
				}
			}
			for slot := range uint32(table.Slots) {
				want[of.Name].Commit(slot, shares[slot], float32(1/float64(27)), table.Step{Number: version + 1, Scale: 1})
			}
		}
	}
	group.Wait()
	c := connectTables(t, book, params.Config{Mode: params.Sync, Optimizer: o, Ordinal: 5})
	for _, of := range []params.Table{users, words} {
		if got := rowsOf(t, c, of, everyID(n), steps); !slices.Equal(got, want[of.Name].values(everyID(n))) {
			t.Errorf("%s: other values than in memory", of.Name)
		}
	}
}

// A lookup returns all rows at its version, also during the commit of the next version.
func TestLookupIsOfOneVersion(t *testing.T) {
	const n, steps = 3000, 60
	book := startServers(t, 2, pserver.Config{})
	count := params.Table{Name: "count", Dim: 4, Init: params.Zeros}
	join := func(ordinal uint32) *params.Client {
		c := connect(t, book, params.Config{Mode: params.Sync, Ordinal: ordinal, Tables: []params.Table{count}})
		mustInit(t, c, little())
		return c
	}
	stager, reader := join(0), join(1)
	var group sync.WaitGroup
	group.Go(func() {
		for version := uint64(0); version < steps; {
			dst := make([]float32, n*count.Dim)
			var err error
			if version, err = reader.Lookup(within(t), "count", everyID(n), dst, 0); err != nil {
				t.Error(err)
				return
			}
			if i := slices.IndexFunc(dst, func(v float32) bool { return v != float32(version) }); i >= 0 {
				t.Errorf("a lookup of version %d has a row of %v", version, dst[i])
				return
			}
		}
	})
	m := newMaster(t, book)
	for version := range uint64(steps) {
		err := errors.Join(stager.StageRows(within(t), "count", version, everyID(n), slices.Repeat([]float32{-6}, n*count.Dim), 3),
			stager.Stage(within(t), version, little(), 3), m.commit(within(t), version+1, by(0, 3)))
		if err != nil {
			t.Fatal(err)
		}
	}
	group.Wait()
}

// A commit without the complete stages of tables is refused, and changes nothing.
func TestCommitNeedsRows(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	c := connectTables(t, book, params.Config{Mode: params.Sync})
	if err := c.Stage(within(t), 0, little(), 3); err != nil {
		t.Fatal(err)
	}
	if err := c.StageRows(within(t), "users", 0, []int64{1}, []float32{1, 1, 1, 1}, 3); err != nil {
		t.Fatal(err)
	}
	m := newMaster(t, book)
	if err := m.commit(within(t), 1, by(0, 3)); err == nil || !strings.Contains(err.Error(), `parts of table "words"`) {
		t.Fatalf("commit without the rows of a table: %v", err)
	}
	if got, want := rowsOf(t, c, users, []int64{1}, 0), newReference(t, users, plainSGD).values([]int64{1}); !slices.Equal(got, want) {
		t.Errorf("row is %v, expected %v", got, want)
	}
	if err := c.StageRows(within(t), "words", 0, nil, nil, 3); err != nil {
		t.Fatal(err)
	}
	if err := m.commit(within(t), 1, by(0, 3)); err != nil {
		t.Fatal(err)
	}
}

// F58 for rows: the client refuses before anything is sent.
func TestClientRefusesRows(t *testing.T) {
	c := connectTables(t, startServers(t, 1, pserver.Config{}), params.Config{Mode: params.Async})
	nan := float32(math.NaN())
	for want, err := range map[string]error{
		`no table "x"`:                   c.PushRows(within(t), "x", 1, 1, nil, nil),
		"3 floats for 1 ids: expected 4": c.PushRows(within(t), "users", 1, 1, []int64{1}, []float32{1, 2, 3}),
		"element 2 of id 9 is NaN":       c.PushRows(within(t), "users", 1, 1, []int64{8, 9}, []float32{1, 1, 1, 1, 1, 1, nan, 1}),
		"steps start at 1":               c.PushRows(within(t), "users", 0, 1, nil, nil),
		"scale is NaN":                   c.PushRows(within(t), "users", 1, nan, nil, nil),
		"this client is in mode async":   c.StageRows(within(t), "users", 1, nil, nil, 1),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	if got := rowsOf(t, c, users, slices.Repeat([]int64{0}, 300_000), 0); len(got) != 1_200_000 || got[0] != got[len(got)-4] {
		t.Error("a lookup of more rows of a slot than a frame has room for")
	}
	_, err := params.Connect(context.Background(), params.Config{
		Addrs: newBook(1).complete, Mode: params.Sync, Incarnation: 1, Tables: []params.Table{users},
		Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 1, ClipNorm: 1},
	})
	if err == nil || !strings.Contains(err.Error(), "use clip-value") {
		t.Errorf("clip-norm with tables: %v", err)
	}
}

// An invalid frame is refused with a reason, and no part of it is applied.
func TestServerRefusesRows(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	c := connectTables(t, book, params.Config{Mode: params.Async})
	addrs, err := book.complete(within(t))
	if err != nil {
		t.Fatal(err)
	}
	placed, err := placement.New([]placement.Tensor{{Name: "b", Shape: []int{2}}}, 2, users, words)
	if err != nil {
		t.Fatal(err)
	}
	digest := placed.Digest()
	p := dial(t, addrs[0])
	hello, _, err := p.ask(wire.Header{Op: wire.Hello, Block: 9, Incarnation: 9}, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	here, there := int64(0), int64(0)
	for placed.SlotOwners[0][table.SlotOf(here)] != 0 {
		here++
	}
	for placed.SlotOwners[0][table.SlotOf(there)] != 1 {
		there++
	}
	good := wire.Header{Op: wire.PushRows, DType: wire.RowBatch, Incarnation: 9, Placement: hello.Placement, ShardEpoch: hello.ShardEpoch, JobEpoch: hello.JobEpoch, Step: 1}
	batch := func(id int64, slot uint32, value float32) []byte {
		payload, r := wire.Layout(floats.Bytes(make([]float32, 64)), 1, 1, 4)
		wire.Number(payload, 0, 1)
		r.Spans[0], r.IDs[0] = table.Span{Slot: slot, Rows: 1}, id
		r.Values[2] = value
		return payload
	}
	ours := table.SlotOf(here)
	for want, f := range map[string]struct {
		code    wire.Code
		change  func(*wire.Header)
		payload []byte
	}{
		"for table 2: the model has 2":                  {wire.NoSuchTable, func(h *wire.Header) { h.Block = 2 }, batch(here, ours, 1)},
		"payload is float32":                            {wire.BadDType, func(h *wire.Header) { h.DType = wire.Float32 }, batch(here, ours, 1)},
		"1 rows of 3 floats":                            {wire.BadRows, func(h *wire.Header) { h.Block = 1 }, batch(here, ours, 1)},
		"payload has 0 bytes":                           {wire.BadRows, func(*wire.Header) {}, nil},
		"is not held here":                              {wire.NoSuchSlot, func(*wire.Header) {}, batch(there, table.SlotOf(there), 1)},
		"id is not of this slot":                        {wire.BadRows, func(*wire.Header) {}, batch(there, ours, 1)},
		fmt.Sprintf("element 2 of id %d is NaN", here):  {wire.NotFinite, func(*wire.Header) {}, batch(here, ours, float32(math.NaN()))},
		fmt.Sprintf("element 2 of id %d is -Inf", here): {wire.NotFinite, func(*wire.Header) {}, batch(here, ours, float32(math.Inf(-1)))},
		"is updated in mode async":                      {wire.WrongMode, func(h *wire.Header) { h.Op = wire.StageRows }, batch(here, ours, 1)},
		"it was restarted":                              {wire.Resync, func(h *wire.Header) { h.ShardEpoch++ }, batch(here, ours, 1)},
	} {
		head := good
		f.change(&head)
		_, _, err := p.ask(head, f.payload)
		var fault *wire.Fault
		if !errors.As(err, &fault) || fault.Code != f.code || !strings.Contains(fault.Message, want) {
			t.Errorf("%q: %v, expected %v", want, err, f.code)
		}
	}
	if got, want := rowsOf(t, c, users, []int64{here}, 0), newReference(t, users, plainSGD).values([]int64{here}); !slices.Equal(got, want) {
		t.Errorf("row is %v, expected %v", got, want)
	}
	for _, flags := range []wire.Flags{wire.Reply, wire.Reply | wire.Duplicate} {
		if head, _, err := p.ask(good, batch(here, ours, 1)); err != nil || head.Flags != flags {
			t.Errorf("push: flags %v, %v, expected %v", head.Flags, err, flags)
		}
	}
	reply, err := control(t, addrs[0]).Describe(within(t), &pb.DescribeRequest{})
	if n := reply.GetCounters(); err != nil || n.GetRowsPushed() != 1 || n.GetRowsHeld() != 1 || n.GetDuplicates() != 1 || n.GetRefused() != 10 {
		t.Errorf("counters %v, %v", n, err)
	}
}

// A newer incarnation fences the pushes of rows of the older one.
func TestFencedRows(t *testing.T) {
	book := startServers(t, 1, pserver.Config{})
	c := connectTables(t, book, params.Config{Mode: params.Async, Incarnation: 4})
	connectTables(t, book, params.Config{Mode: params.Async, Incarnation: 5})
	if err := c.PushRows(within(t), "users", 1, 1, []int64{1}, make([]float32, 4)); !errors.Is(err, params.ErrFenced) {
		t.Errorf("push of the older incarnation: %v", err)
	}
}

// A trainer with other tables receives an error that names the difference.
func TestOtherTables(t *testing.T) {
	book := startServers(t, 1, pserver.Config{})
	connectTables(t, book, params.Config{Mode: params.Async})
	other := users
	other.Seed = 4
	for want, tables := range map[string][]params.Table{
		`table "users" has seed 3, yours 4`: {other, words},
		`this model has the table "words"`:  {users},
		`your model has the table "a"`:      {users, words, {Name: "a", Dim: 1, Init: params.Zeros}},
	} {
		c := connect(t, book, params.Config{Mode: params.Async, Ordinal: 3, Tables: tables})
		if err := c.Init(within(t), little()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// A batch of a feature with two values repeats two ids thousands of times: the client sends each id once, with the sum of its
// gradients, and a lookup fills all of its places.
func TestRepeatedIDsAreSentOnce(t *testing.T) {
	s := startServers(t, 1, pserver.Config{})
	table := params.Table{Name: "gender", Dim: 64, Init: params.Zeros}
	for _, mode := range []params.Mode{params.Async, params.Sync} {
		t.Run(mode.String(), func(t *testing.T) {
			book := s
			if mode == params.Sync {
				book = startServers(t, 2, pserver.Config{})
			}
			c := connect(t, book, params.Config{Mode: mode, Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 1}, Tables: []params.Table{table}})
			mustInit(t, c, little())
			ids, grads := make([]int64, 8192), make([]float32, 8192*64)
			for i := range ids {
				ids[i] = int64(i % 2)
				grads[i*64+i%64] = -1
			}
			before := slices.Clone(grads)
			version := uint64(0)
			if mode == params.Async {
				must(t, c.PushRows(within(t), table.Name, 1, 1, ids, grads))
			} else {
				must(t, c.Stage(within(t), 0, little(), 1))
				must(t, c.StageRows(within(t), table.Name, 0, ids, grads, 1))
				must(t, newMaster(t, book).commit(within(t), 1, by(0, 1)))
				version = 1
			}
			if !slices.Equal(grads, before) {
				t.Error("the gradients of the caller were changed")
			}
			got := make([]float32, len(grads))
			if _, err := c.Lookup(within(t), table.Name, ids, got, version); err != nil {
				t.Fatal(err)
			}
			for i, v := range got {
				want := float32(0)
				if i%2 == i/64%2 { // each id has 4,096 gradients, of which 128 are of each element of its own parity
					want = 128
				}
				if v != want {
					t.Fatalf("element %d of place %d is %v, expected %v", i%64, i/64, v, want)
				}
			}
		})
	}
}

// Gradients that are finite, and whose sum is not, are refused before they are sent.
func TestSumOfRepeatedIDsOverflows(t *testing.T) {
	table := params.Table{Name: "big", Dim: 2, Init: params.Zeros}
	c := connect(t, startServers(t, 1, pserver.Config{}), params.Config{Mode: params.Async, Tables: []params.Table{table}})
	mustInit(t, c, little())
	err := c.PushRows(within(t), table.Name, 1, 1, []int64{7, 8, 7}, []float32{0, 3e38, 0, 0, 0, 3e38})
	if err == nil || !strings.Contains(err.Error(), "element 1 of the sum of the gradients of id 7 is +Inf") {
		t.Errorf("error %v", err)
	}
	if got := rowsOf(t, c, table, []int64{7, 8}, 0); !slices.Equal(got, make([]float32, 4)) {
		t.Errorf("rows %v after a push that was refused", got)
	}
}
