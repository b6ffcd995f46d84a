package table

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
)

// send moves slots from one shard of a table to another, in pieces of at most most rows, and returns their shares after it.
func send(t testing.TB, from, to *Table, slots []uint32, most int, columns []*partition.Trainer, theirs []*partition.Trainer) (after, taken *Table) {
	t.Helper()
	arrived := map[uint32]*Incoming{}
	steps := map[uint32][]uint64{}
	for _, slot := range slots {
		from.Partition(slot).Freeze()
		out := from.Send(slot)
		arrived[slot] = to.Receive(slot)
		liveRows := 0
		for last := false; !last; {
			var m *Image
			m, last = out.Next(most)
			if err := arrived[slot].Add(m); err != nil || len(m.IDs)+len(m.Candidates) > most {
				t.Fatalf("a piece of %d rows and %d candidates: %v", len(m.IDs), len(m.Candidates), err)
			}
			liveRows = m.LiveRows
		}
		if got := arrived[slot].Rows(); got != liveRows {
			t.Fatalf("slot %d arrived with %d rows, expected %d", slot, got, liveRows)
		}
		for _, c := range columns {
			steps[slot] = append(steps[slot], from.Partition(slot).Step(c))
		}
	}
	kept := slices.DeleteFunc(slices.Clone(from.Held()), func(slot uint32) bool { return arrived[slot] != nil })
	held := append(slices.Clone(to.Held()), slots...)
	slices.Sort(held)
	taken, err := to.Placed(held, func(slot uint32) *Incoming { return arrived[slot] })
	if err != nil {
		t.Fatal(err)
	}
	for slot, list := range steps {
		for i, step := range list {
			taken.Partition(slot).SetStep(theirs[i], step)
		}
	}
	if after, err = from.Placed(kept, nil); err != nil {
		t.Fatal(err)
	}
	from.Leave(after)
	return after, taken
}

// Two shards that exchange slots give the same result as one naive table, bit by bit: rows, moments, numbers of updates, expired rows
// and candidates. A repeated push changes nothing, on both shards.
func TestMovedSlotsAreTheNaiveOnes(t *testing.T) {
	for _, o := range []optimizer.Config{plain, {Kind: optimizer.Adam}} {
		cfg, o := valid(t, Config{Name: "t", Dim: 2, Init: Uniform, Scale: 1, Expiry: 40, Admission: 2}), validRule(t, o)
		shards := [2]*Table{New(cfg, o, held(2, 0), noCut), New(cfg, o, held(2, 1), noCut)}
		columns := [2][]*partition.Trainer{{trainer(0), trainer(1)}, {trainer(0), trainer(1)}}
		want := newNaive(cfg, o)
		naiveColumns := []*partition.Trainer{trainer(0), trainer(1)}
		r := rand.New(rand.NewPCG(1, 2))
		ids := universe(r, 12)
		steps := [2]uint64{}
		applied, repeated, moved := 0, 0, 0
		for range 1500 {
			switch {
			case r.IntN(8) == 0:
				from := r.IntN(2)
				slots := slices.DeleteFunc(slices.Clone(shards[from].Held()), func(slot uint32) bool { return r.IntN(4) > 0 })
				shards[from], shards[1-from] = send(t, shards[from], shards[1-from], slots, 1+r.IntN(5), columns[from], columns[1-from])
				moved += len(slots)
			default:
				who := r.IntN(2)
				again := steps[who] > 0 && r.IntN(3) == 0
				if !again {
					steps[who]++
				}
				batch := rand.New(rand.NewPCG(steps[who], uint64(who))) // the same for the same step
				some, grads := make([]int64, 30), make([]float32, 60)
				for k := range some {
					some[k] = ids[batch.IntN(len(ids))]
				}
				for i := range grads {
					grads[i] = float32(batch.NormFloat64())
				}
				want.push(some, grads, naiveColumns[who], steps[who], 1)
				for i, table := range shards {
					var here []int64
					var theirs []float32
					for k, id := range some {
						if slices.Contains(table.Held(), SlotOf(id)) {
							here, theirs = append(here, id), append(theirs, grads[2*k:2*k+2]...)
						}
					}
					rows, _ := grouped(here, theirs, 2)
					n, err := table.Update(&rows, columns[i][who], Step{steps[who], 1}, nil)
					if err != nil {
						t.Fatal(err)
					}
					if applied += n; again {
						repeated += len(rows.Spans)
						if n > 0 {
							t.Fatalf("a repeated push was applied to %d slots", n)
						}
					}
				}
			}
			for _, table := range shards {
				here := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return !slices.Contains(table.Held(), SlotOf(id)) })
				got := lookup(table, here)
				for k, id := range here {
					if !slices.Equal(got[2*k:2*k+2], want.lookup(id)) {
						t.Fatalf("%s: id %d has %v, expected %v", o.Kind, id, got[2*k:2*k+2], want.lookup(id))
					}
				}
			}
			if got := shards[0].Rows() + shards[1].Rows(); got != len(want.rows) {
				t.Fatalf("%d rows, expected %d", got, len(want.rows))
			}
		}
		if applied < 1000 || repeated < 1000 || moved < 1000 {
			t.Errorf("%d slots updated, %d updated again, %d moved: the test covers too little", applied, repeated, moved)
		}
	}
}

// Memory of a slot that left is reused, and its old content is invisible.
func TestMemoryOfSlotsThatLeft(t *testing.T) {
	o := validRule(t, optimizer.Config{Kind: optimizer.Adam})
	table := newTable(t, Config{Name: "t", Dim: 4, Init: Uniform, Scale: 1}, o, noCut)
	var ids, others []int64
	for id := int64(0); len(ids) < 3*chunkRows || len(others) < 3*chunkRows; id++ {
		switch SlotOf(id) {
		case 3:
			ids = append(ids, id)
		case 4:
			others = append(others, id)
		}
	}
	ids, others = ids[:3*chunkRows], others[:3*chunkRows]
	push := func(to *Table, ids []int64) {
		batch, _ := grouped(ids, slices.Repeat([]float32{1}, 4*len(ids)), 4)
		if _, err := to.Update(&batch, trainer(0), Step{1, 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	push(table, ids)
	want := lookup(table, ids)
	free := len(table.arena.free)
	table, there := send(t, table, New(table.Config(), o, nil, noCut), []uint32{3}, 100, nil, nil)
	if got := len(table.arena.free); got != free+3 {
		t.Errorf("%d chunks are free, expected 3 more than %d", got, free)
	}
	push(table, others)
	fresh := newTable(t, table.Config(), o, noCut)
	push(fresh, others)
	if len(table.arena.free) != free || !slices.Equal(lookup(table, others), lookup(fresh, others)) {
		t.Errorf("%d chunks are free, expected %d; or rows in used memory are other ones", len(table.arena.free), free)
	}
	if !slices.Equal(lookup(there, ids), want) {
		t.Error("the slot has other rows than before")
	}
}

// A slot in transfer takes no update. A slot that has left returns an error to callers with the old share.
func TestSlotsOnTheirWay(t *testing.T) {
	table := newTable(t, Config{Name: "t", Dim: 1, Init: Zeros}, plain, noCut)
	id := int64(5)
	slot := SlotOf(id)
	batch := func() (c *partition.Trainer, err error) {
		rows, _ := grouped([]int64{id}, []float32{1}, 1)
		c = trainer(0)
		_, err = table.Update(&rows, c, Step{1, 1}, nil)
		return c, err
	}
	if _, err := batch(); err != nil {
		t.Fatal(err)
	}
	before := lookup(table, []int64{id})
	p := table.Partition(slot)
	p.Freeze()
	var frozen partition.ErrFrozen
	if c, err := batch(); !errors.As(err, &frozen) || p.Step(c) != 0 || !slices.Equal(lookup(table, []int64{id}), before) {
		t.Errorf("a push to a frozen slot: %v", err)
	}
	p.Thaw()
	<-frozen.Until
	p.Freeze() // for another move
	until := p.Frozen()
	if until == frozen.Until {
		t.Error("two migrations end at the same time")
	}
	rows, _ := grouped([]int64{id}, nil, 1)
	other := New(table.Config(), plain, nil, noCut)
	send(t, table, other, []uint32{slot}, 9, nil, nil)
	<-until
	if _, err := batch(); !errors.Is(err, partition.ErrMoved) {
		t.Errorf("a push to a slot that has left: %v", err)
	}
	if err := table.Lookup(&rows, nil, make([]float32, 1)); !errors.Is(err, partition.ErrMoved) {
		t.Errorf("a look-up in a slot that has left: %v", err)
	}
	if _, err := table.Scan(Place{}, 1<<20, &rows); !errors.Is(err, partition.ErrMoved) {
		t.Errorf("a scan over a slot that has left: %v", err)
	}
	if _, err := table.Scan(Place{Slot: slot + 1}, 1<<20, &rows); err != nil {
		t.Errorf("a scan that is past it: %v", err)
	}
	if p := New(table.Config(), plain, nil, noCut).Partition(slot); p != nil {
		t.Errorf("a slot that is not here has a partition")
	}
}

// A piece that does not fit is refused with the reason.
func TestPiecesThatDoNotFit(t *testing.T) {
	table := newTable(t, Config{Name: "t", Dim: 1, Init: Zeros}, plain, noCut)
	slot := SlotOf(5)
	for want, m := range map[string]*Image{
		"duplicate id":    {IDs: []int64{5}, Versions: []uint32{1}, Values: []float32{1}},
		"expected slot":   {IDs: []int64{6}, Versions: []uint32{1}, Values: []float32{1}},
		"has version 0":   {IDs: []int64{7}, Versions: []uint32{0}, Values: []float32{1}},
		"with 1 versions": {IDs: []int64{5}, Versions: []uint32{1}, Values: []float32{1, 2}},
		"candidate 6":     {Candidates: []Candidate{{ID: 6}}},
	} {
		in := table.Receive(slot)
		if err := in.Add(&Image{IDs: []int64{5}, Versions: []uint32{1}, Values: []float32{1}}); err != nil {
			t.Fatal(err)
		}
		if want == "has version 0" {
			m.IDs = sameSlot(slot)
		}
		if err := in.Add(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	if _, err := table.Placed([]uint32{0}, nil); err != nil {
		t.Error(err)
	}
	if _, err := New(table.Config(), plain, nil, noCut).Placed([]uint32{3}, func(uint32) *Incoming { return nil }); err == nil || !strings.Contains(err.Error(), `slot 3 of table "t"`) {
		t.Errorf("a slot that is nowhere: %v", err)
	}
}

// sameSlot is an id, other than 5, of its slot.
func sameSlot(slot uint32) []int64 {
	for id := int64(6); ; id++ {
		if SlotOf(id) == slot {
			return []int64{id}
		}
	}
}
