package table

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
)

// naive is a table as the package comment describes it, as plainly as can be.
type naive struct {
	cfg     Config
	o       optimizer.Config
	rows    map[int64]*naiveRow
	waiting map[int64]*naiveRow
	clocks  [Slots]uint64
	applied map[*partition.Trainer]map[uint32]uint64
}

var incarnations atomic.Uint64

// trainer is a new incarnation with a number.
func trainer(number int) *partition.Trainer {
	return partition.NewTrainer(number, incarnations.Add(1))
}

type naiveRow struct {
	params  []float32
	state   optimizer.State
	updates uint64
	version uint64
}

func newNaive(cfg Config, o optimizer.Config) *naive {
	return &naive{cfg: cfg, o: o, rows: map[int64]*naiveRow{}, waiting: map[int64]*naiveRow{}, applied: map[*partition.Trainer]map[uint32]uint64{}}
}

func (n *naive) initial(id int64) []float32 {
	row := make([]float32, n.cfg.Dim)
	newInitializer(n.cfg).fill(row, id)
	return row
}

func (n *naive) lookup(id int64) []float32 {
	if r := n.rows[id]; r != nil {
		return r.params
	}
	return n.initial(id)
}

// push applies a batch, slot by slot.
func (n *naive) push(ids []int64, grads []float32, c *partition.Trainer, step uint64, scale float32) {
	bySlot := map[uint32][]int{}
	for k, id := range ids {
		bySlot[SlotOf(id)] = append(bySlot[SlotOf(id)], k)
	}
	if n.applied[c] == nil {
		n.applied[c] = map[uint32]uint64{}
	}
	for slot, places := range bySlot {
		if c != nil {
			if step <= n.applied[c][slot] {
				continue
			}
			n.applied[c][slot] = step
		}
		n.apply(slot, ids, grads, places, step, scale)
	}
}

func (n *naive) apply(slot uint32, ids []int64, grads []float32, places []int, step uint64, scale float32) {
	n.expire(slot, step)
	sums := map[int64][]float32{}
	for _, k := range places {
		g := grads[k*n.cfg.Dim : (k+1)*n.cfg.Dim]
		if sum := sums[ids[k]]; sum != nil {
			for j := range sum {
				sum[j] += g[j]
			}
			continue
		}
		sums[ids[k]] = slices.Clone(g)
	}
	for id, sum := range sums {
		n.step(id, sum, step, scale)
	}
}

func (n *naive) step(id int64, g []float32, step uint64, scale float32) {
	rule := n.o.Rule()
	r := n.rows[id]
	if r == nil {
		w := n.waiting[id]
		if w == nil {
			w = &naiveRow{}
		}
		w.updates++
		w.version = n.clocks[SlotOf(id)]
		if w.updates < uint64(n.cfg.Admission) {
			n.waiting[id] = w
			return
		}
		delete(n.waiting, id)
		r = &naiveRow{params: n.initial(id)}
		for i := range rule.Slots() {
			r.state[i] = make([]float32, n.cfg.Dim)
		}
		rule.Start(r.params, r.state)
		n.rows[id] = r
	}
	r.updates++
	r.version = n.clocks[SlotOf(id)]
	rule.Apply(r.params, g, r.state, optimizer.Step{Count: r.updates, Scale: scale})
}

func (n *naive) expire(slot uint32, step uint64) {
	old := n.clocks[slot]
	now := max(old, step)
	n.clocks[slot] = now
	if n.cfg.Expiry == 0 || now/max(1, n.cfg.Expiry/4) == old/max(1, n.cfg.Expiry/4) {
		return
	}
	for _, rows := range []map[int64]*naiveRow{n.rows, n.waiting} {
		for id, r := range rows {
			if SlotOf(id) == slot && now > r.version+n.cfg.Expiry {
				delete(rows, id)
			}
		}
	}
}

// grouped is a batch as the wire has it; without grads for a lookup. order is the place of every row of it among ids.
func grouped(ids []int64, grads []float32, dim int) (r Batch, order []int) {
	for k := range ids {
		order = append(order, k)
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(SlotOf(ids[a])) - int(SlotOf(ids[b])) })
	for _, k := range order {
		slot := SlotOf(ids[k])
		if n := len(r.Spans); n == 0 || r.Spans[n-1].Slot != slot {
			r.Spans = append(r.Spans, Span{Slot: slot})
		}
		r.Spans[len(r.Spans)-1].Rows++
		r.IDs = append(r.IDs, ids[k])
		if grads != nil {
			r.Values = append(r.Values, grads[k*dim:(k+1)*dim]...)
		}
	}
	return r, order
}

// held are all slots, or every third of them.
func held(every, from int) (list []uint32) {
	for i := from; i < Slots; i += every {
		list = append(list, uint32(i))
	}
	return list
}

func noCut() *Cut { return nil }

func newTable(t testing.TB, cfg Config, o optimizer.Config, current func() *Cut) *Table {
	t.Helper()
	return New(valid(t, cfg), validRule(t, o), held(1, 0), current)
}

func valid(t testing.TB, cfg Config) Config {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func validRule(t testing.TB, o optimizer.Config) optimizer.Config {
	t.Helper()
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	return o
}

func lookup(table *Table, ids []int64) []float32 {
	dim := table.Config().Dim
	r, order := grouped(ids, nil, dim)
	got := make([]float32, len(ids)*dim)
	table.Lookup(&r, nil, got)
	out := make([]float32, len(got))
	for i, k := range order {
		copy(out[k*dim:(k+1)*dim], got[i*dim:])
	}
	return out
}

// The table does what the naive one does, bit by bit, whatever the rule, the expiry and the admission; a repeated push changes nothing.
func TestTableIsTheNaiveOne(t *testing.T) {
	for _, o := range []optimizer.Config{
		{Kind: optimizer.SGD, LearningRate: 0.1},
		{Kind: optimizer.Momentum, LearningRate: 0.1, Momentum: 0.9, WeightDecay: 0.01},
		{Kind: optimizer.Adagrad, InitialAccumulator: 0.1},
		{Kind: optimizer.AdamW, WeightDecay: 0.1, ClipValue: 1},
		{Kind: optimizer.FTRL, L1: 0.01},
	} {
		for _, cfg := range []Config{
			{Name: "plain", Dim: 3, Init: Uniform, Scale: 0.5},
			{Name: "expires", Dim: 2, Init: Normal, Scale: 0.1, Expiry: 9},
			{Name: "admits", Dim: 1, Init: Zeros, Expiry: 1 << 20, Admission: 3},
			{Name: "both", Dim: 2, Init: Uniform, Scale: 1, Expiry: 5, Admission: 2},
		} {
			t.Run(o.Kind+"/"+cfg.Name, func(t *testing.T) { compare(t, valid(t, cfg), validRule(t, o)) })
		}
	}
}

func compare(t *testing.T, cfg Config, o optimizer.Config) {
	r := rand.New(rand.NewPCG(1, uint64(len(cfg.Name))))
	table, want := New(cfg, o, held(1, 0), noCut), newNaive(cfg, o)
	columns := []*partition.Trainer{trainer(0), trainer(1)}
	sometimes := universe(r, 40) // few slots, so that a slot has many ids and its clock advances
	steps := []uint64{0, 0}
	for round := range 120 {
		ids := make([]int64, r.IntN(60))
		grads := make([]float32, len(ids)*cfg.Dim)
		for k := range ids {
			ids[k] = sometimes[r.IntN(1+r.IntN(len(sometimes)))]
		}
		for i := range grads {
			grads[i] = float32(r.NormFloat64())
		}
		who := r.IntN(2)
		if steps[who] == 0 || r.IntN(4) > 0 { // else it is a repetition
			steps[who] += 1 + r.Uint64N(3)
		}
		batch, _ := grouped(ids, grads, cfg.Dim)
		if err := table.Check(&batch); err != nil {
			t.Fatal(err)
		}
		scale := 1 + float32(r.IntN(2))
		want.push(ids, grads, columns[who], steps[who], scale)
		if _, err := table.Update(&batch, columns[who], Step{steps[who], scale}, nil); err != nil {
			t.Fatal(err)
		}
		if err := differ(table, want, sometimes); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	if table.Rows() != len(want.rows) {
		t.Errorf("%d rows, expected %d", table.Rows(), len(want.rows))
	}
}

// universe is n ids for each of a few slots.
func universe(r *rand.Rand, n int) (ids []int64) {
	counts := map[uint32]int{3: 0, 500: 0, 1023: 0}
	for len(ids) < n*len(counts) {
		id := int64(r.Uint64())
		if c, ok := counts[SlotOf(id)]; ok && c < n {
			counts[SlotOf(id)]++
			ids = append(ids, id)
		}
	}
	return ids
}

func differ(table *Table, want *naive, ids []int64) error {
	dim := table.Config().Dim
	got := lookup(table, ids)
	for k, id := range ids {
		if w := want.lookup(id); !slices.Equal(got[k*dim:(k+1)*dim], w) {
			return fmt.Errorf("id %d is %v, expected %v", id, got[k*dim:(k+1)*dim], w)
		}
	}
	return nil
}

// Shares are summed in their order, times the factor, and applied once to each id.
func TestCommitSumsShares(t *testing.T) {
	cfg := valid(t, Config{Name: "t", Dim: 2, Init: Uniform, Scale: 1})
	o := validRule(t, optimizer.Config{Kind: optimizer.Adam})
	r := rand.New(rand.NewPCG(5, 5))
	table, want := New(cfg, o, held(1, 0), noCut), newNaive(cfg, o)
	ids := universe(r, 8)
	for version := uint64(1); version < 20; version++ {
		bySlot, all := map[uint32][]Share{}, map[uint32]Share{}
		for range 3 {
			for slot := range map[uint32]bool{3: true, 500: true} {
				var s Share
				for range r.IntN(10) {
					id := ids[r.IntN(len(ids))]
					if SlotOf(id) == slot {
						s.IDs, s.Grads = append(s.IDs, id), append(s.Grads, float32(r.NormFloat64()), float32(r.NormFloat64()))
					}
				}
				bySlot[slot] = append(bySlot[slot], s)
				a := all[slot]
				all[slot] = Share{append(a.IDs, s.IDs...), append(a.Grads, s.Grads...)}
			}
		}
		for slot, a := range all {
			before := slices.Clone(bySlot[slot][0].Grads)
			table.Commit(slot, bySlot[slot], 0.25, Step{version, 1})
			if !slices.Equal(before, bySlot[slot][0].Grads) {
				t.Fatal("a share was changed")
			}
			sum, order := map[int64][]float32{}, []int64{}
			for k, id := range a.IDs {
				if sum[id] == nil {
					sum[id], order = make([]float32, 2), append(order, id)
					copy(sum[id], a.Grads[2*k:])
					continue
				}
				sum[id][0] += a.Grads[2*k]
				sum[id][1] += a.Grads[2*k+1]
			}
			for _, id := range order {
				sum[id][0] *= 0.25
				sum[id][1] *= 0.25
				want.step(id, sum[id], version, 1)
			}
		}
		if err := differ(table, want, ids); err != nil {
			t.Fatalf("version %d: %v", version, err)
		}
	}
}

// Any number of shards gives the same model.
func TestShardsMakeNoDifference(t *testing.T) {
	cfg := valid(t, Config{Name: "t", Dim: 4, Init: Normal, Scale: 0.3, Seed: 9, Expiry: 12})
	o := validRule(t, optimizer.Config{Kind: optimizer.Adam})
	r := rand.New(rand.NewPCG(2, 2))
	whole, column := New(cfg, o, held(1, 0), noCut), trainer(0)
	var parts []*Table
	for i := range 3 {
		parts = append(parts, New(cfg, o, held(3, i), noCut))
	}
	for step := uint64(1); step < 40; step++ {
		ids, grads := make([]int64, 300), make([]float32, 1200)
		for k := range ids {
			ids[k] = r.Int64N(500)
		}
		for i := range grads {
			grads[i] = float32(r.NormFloat64())
		}
		for i, part := range parts {
			var mine []int64
			var g []float32
			for k, id := range ids {
				if int(SlotOf(id))%3 == i {
					mine, g = append(mine, id), append(g, grads[4*k:4*k+4]...)
				}
			}
			batch, _ := grouped(mine, g, 4)
			if _, err := part.Update(&batch, trainer(0), Step{step, 1}, nil); err != nil {
				t.Fatal(err)
			}
		}
		batch, _ := grouped(ids, grads, 4)
		if _, err := whole.Update(&batch, column, Step{step, 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for id := range int64(500) {
		want := lookup(whole, []int64{id})
		if got := lookup(parts[SlotOf(id)%3], []int64{id}); !slices.Equal(got, want) {
			t.Fatalf("id %d is %v, on one shard %v", id, got, want)
		}
	}
}
