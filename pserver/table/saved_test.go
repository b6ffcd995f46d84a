package table

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
)

// fillSlot makes a row for each id of a slot, and returns the batch that updates some of them.
func fillSlot(t *testing.T, table *Table, column *partition.Trainer, ids []int64) {
	t.Helper()
	r, _ := grouped(ids, make([]float32, len(ids)*table.cfg.Dim), table.cfg.Dim)
	if n, err := table.Update(&r, column, Step{Number: 1, Scale: 1}, nil); n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

// The first update of a slot after a full cut copies the rows that it changes and no others, whatever the slot has.
func TestFirstUpdateAfterFullCutCopiesItsRowsOnly(t *testing.T) {
	var current atomic.Pointer[Cut]
	table, column := newTable(t, Config{Name: "t", Dim: 4, Init: Zeros, Expiry: 100, Admission: 2}, plain, current.Load), trainer(0)
	ids := idsOf(9, 3000)
	fillSlot(t, table, column, ids)
	table.Partition(9).SetStep(column, 0)
	fillSlot(t, table, column, ids[:2500]) // the others wait for their second update
	cut := &Cut{Number: 1, Trainers: []*partition.Trainer{column}}
	current.Store(cut)
	r, _ := grouped([]int64{ids[5], ids[2499], ids[5], ids[2600], ids[2999]}, make([]float32, 5*4), 4)
	for step := range uint64(2) {
		if _, err := table.Update(&r, column, Step{Number: 2 + step, Scale: 1}, nil); err != nil {
			t.Fatal(err)
		}
		if p := table.slots[9].saved; len(p.kept) != 2 || cut.keeps != 2 || len(p.candidates) != 2 {
			t.Fatalf("after push %d of 2 rows and 2 candidates: %d rows and %d candidates were copied", step+1, len(p.kept), len(p.candidates))
		}
	}
	if m := table.Collect(9, cut); len(m.IDs) != 2500 || len(m.Candidates) != 500 || m.Steps[0] != 1 {
		t.Errorf("the cut has %d rows, %d candidates and step %d, expected 2500, 500 and 1", len(m.IDs), len(m.Candidates), m.Steps[0])
	}
	current.Store(nil)
	free := len(table.arena.free)
	if table.EndCut(); cut.memory != nil || len(table.arena.free) != free+1 {
		t.Errorf("the end of the cut gave %d chunks back, expected 1", len(table.arena.free)-free)
	}
}

// Collect returns the state at the cut, in the same order. Updates during and before the collection change, make and drop rows, and
// admit and drop candidates.
func TestCollectDuringUpdatesReturnsStateAtCut(t *testing.T) {
	for _, full := range []bool{true, false} {
		cfg := valid(t, Config{Name: "t", Dim: 40, Init: Uniform, Scale: 1, Expiry: 12, Admission: 2})
		o := validRule(t, optimizer.Config{Kind: optimizer.Adam})
		var current, early atomic.Pointer[Cut]
		slot := []uint32{9}
		table, twin := New(cfg, o, slot, current.Load), New(cfg, o, slot, early.Load)
		ids := idsOf(9, 4000)
		r := rand.New(rand.NewPCG(4, 4))
		column, second := trainer(0), trainer(0)
		push := func(step uint64, to ...*Table) {
			some, grads := make([]int64, 800), make([]float32, 800*cfg.Dim)
			for k := range some {
				some[k] = ids[r.IntN(1+r.IntN(len(ids)))]
			}
			for i := range grads {
				grads[i] = float32(r.NormFloat64())
			}
			for _, what := range to {
				batch, _ := grouped(some, slices.Clone(grads), cfg.Dim)
				c := column
				if what == twin {
					c = second
				}
				if _, err := what.Update(&batch, c, Step{step, 1}, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		step := uint64(0)
		var fullCut, twinFull *Cut
		for number := uint64(1); number <= 8; number++ {
			for range 5 {
				step++
				push(step, table, twin)
			}
			cut := &Cut{Number: number, Trainers: []*partition.Trainer{column}}
			twinCut := &Cut{Number: number, Trainers: []*partition.Trainer{second}}
			if full || number%3 == 1 {
				fullCut, twinFull = cut, twinCut
			} else {
				cut.Since, twinCut.Since = fullCut, twinFull
			}
			early.Store(twinCut)
			current.Store(cut)
			want := twin.Collect(9, early.Load())
			early.Store(nil)
			twin.EndCut()
			if number%2 == 0 {
				step++
				push(step, table, twin)
			}
			sizes := table.Sizes(9, cut)
			var m *Image
			var collecting sync.WaitGroup
			collecting.Go(func() { m = table.Collect(9, cut) })
			for range 3 {
				step++
				push(step, table, twin)
			}
			collecting.Wait()
			current.Store(nil)
			table.EndCut()
			if (sizes != Sizes{len(m.IDs), len(m.Unchanged), len(m.Candidates)}) || len(m.IDs) == 0 || len(m.Candidates) == 0 {
				t.Fatalf("full cut: %t, cut %d: %d rows, %d unchanged, %d waiting; its sizes were %v", cut.Since == nil, number, len(m.IDs), len(m.Unchanged), len(m.Candidates), sizes)
			}
			if !reflect.DeepEqual(m, want) {
				t.Fatalf("full cut: %t, cut %d: the image of %d rows and %d candidates differs from the image at the cut, of %d and %d",
					cut.Since == nil, number, len(m.IDs), len(m.Candidates), len(want.IDs), len(want.Candidates))
			}
		}
	}
}
