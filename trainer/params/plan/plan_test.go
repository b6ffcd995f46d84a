package plan

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// Batches of any size, with many duplicates, in one Rows. Each distinct id has one position, its first, in its slot. Sum and Fill
// equal a computation with a map.
func TestRowsEqualsMap(t *testing.T) {
	const dim = 2
	cfg := table.Config{Name: "t", Dim: dim, Init: table.Zeros}
	r := rand.New(rand.NewPCG(1, 2))
	var p Rows
	for _, n := range []int{0, 1, 5000, 7, 300} {
		ids, grads, dst := make([]int64, n), make([]float32, n*dim), make([]float32, n*dim)
		sums, values := map[int64][dim]float32{}, map[int64]float32{}
		for i := range ids {
			ids[i] = r.Int64N(int64(n)/3+1) - 1
			grads[i*dim], grads[i*dim+1] = float32(r.IntN(100)), 1
			sums[ids[i]] = [dim]float32{sums[ids[i]][0] + grads[i*dim], sums[ids[i]][1] + 1}
			values[ids[i]] = float32(ids[i] + 10)
		}
		before := slices.Clone(grads)
		p.Sort(&cfg, ids)
		if p.Repeats() != n-len(sums) {
			t.Errorf("batch of %d: %d duplicates, expected %d", n, p.Repeats(), n-len(sums))
		}
		got, err := p.Sum(ids, grads, dim)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for slot := range uint32(table.Slots) {
			for _, i := range p.Slot(slot) {
				seen++
				if cfg.SlotOf(ids[i]) != slot || slices.Index(ids, ids[i]) != int(i) {
					t.Fatalf("position %d of id %d is in slot %d", i, ids[i], slot)
				}
				if want := sums[ids[i]]; [dim]float32(got[i*dim:]) != want {
					t.Fatalf("sum of id %d is %v, expected %v", ids[i], got[i*dim:(i+1)*dim], want)
				}
				dst[i*dim] = values[ids[i]]
			}
		}
		if seen != len(sums) || !slices.Equal(grads, before) {
			t.Errorf("batch of %d: %d positions, expected %d; gradients changed: %t", n, seen, len(sums), !slices.Equal(grads, before))
		}
		p.Fill(dst, dim)
		for i, id := range ids {
			if dst[i*dim] != values[id] {
				t.Fatalf("row of id %d at position %d is %v, expected %v", id, i, dst[i*dim], values[id])
			}
		}
	}
}

func TestSumThatOverflowsReturnsError(t *testing.T) {
	cfg := table.Config{Name: "t", Dim: 1, Init: table.Zeros}
	var p Rows
	ids := []int64{4, 9, 9}
	p.Sort(&cfg, ids)
	if _, err := p.Sum(ids, []float32{0, 3e38, 3e38}, 1); err == nil || !strings.Contains(err.Error(), "element 0 of the sum of the gradients of id 9 is +Inf") {
		t.Errorf("error %v", err)
	}
}

// A frame takes spans of other slots up to its size, and its memory is reused.
func TestFrameEndsAtItsSize(t *testing.T) {
	const dim, rows = 16, 1000
	var f Frame
	places := make([]int32, rows)
	for range 2 {
		f.Reset(table.Span{Slot: 0, Rows: rows}, places)
		if f.Add(table.Span{Slot: 0, Rows: rows}, places, dim) {
			t.Error("a second span of slot 0 was added")
		}
		slot := uint32(1)
		for f.Add(table.Span{Slot: slot, Rows: rows}, places, dim) {
			slot++
		}
		size := wire.RowsSize(len(f.Spans), len(f.Places), dim)
		if next := wire.RowsSize(len(f.Spans)+1, len(f.Places)+rows, dim); size > frameBytes || next <= frameBytes || len(f.Places) != rows*len(f.Spans) {
			t.Errorf("frame of %d spans and %d positions has %d bytes, with the next span %d: expected at most %d", len(f.Spans), len(f.Places), size, next, frameBytes)
		}
	}
}
