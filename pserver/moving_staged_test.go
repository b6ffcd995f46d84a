package pserver

import (
	"fmt"
	"testing"

	"trainmaster/pserver/model"
	"trainmaster/pserver/placement"
)

// What comes with a block goes to the stage that its trainer is at, here or there: the later version, and of two attempts at one
// version the later one.
func TestStagedPartsMeet(t *testing.T) {
	table, err := placement.New([]placement.Tensor{{Name: "a", Shape: []int{2}}, {Name: "b", Shape: []int{2}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	h := newHolding(&model.Model{Placement: table}, 0)
	for name, c := range map[string]struct {
		here, comes   stagedPart // of block 0, and of block 1
		wantAt, parts string
		bytes         int64
	}{
		"nothing is here":                      {stagedPart{}, stagedPart{attempt{7, 3, 5, 20}, []float32{1, 2}}, "3 of 5 records", "0 20", 8},
		"the same attempt":                     {stagedPart{attempt{7, 3, 5, 30}, []float32{3, 4}}, stagedPart{attempt{7, 3, 5, 20}, []float32{1, 2}}, "3 of 5 records", "30 20", 16},
		"an earlier version is here":           {stagedPart{attempt{7, 2, 5, 10}, []float32{3, 4}}, stagedPart{attempt{7, 3, 5, 20}, []float32{1, 2}}, "3 of 5 records", "0 20", 16},
		"a later version is here":              {stagedPart{attempt{7, 4, 5, 30}, []float32{3, 4}}, stagedPart{attempt{7, 3, 5, 20}, []float32{1, 2}}, "4 of 5 records", "30 0", 8},
		"an earlier attempt of others is here": {stagedPart{attempt{7, 3, 6, 10}, []float32{3, 4}}, stagedPart{attempt{7, 3, 5, 20}, []float32{1, 2}}, "3 of 5 records", "0 20", 16},
		"a later attempt of others is here":    {stagedPart{attempt{7, 3, 6, 30}, []float32{3, 4}}, stagedPart{attempt{7, 3, 5, 20}, []float32{1, 2}}, "3 of 6 records", "30 0", 8},
	} {
		st := &stages{byIncarnation: map[uint64]*stage{}}
		if c.here.sum != nil {
			st.arriveLocked(h, 0, []stagedPart{c.here})
		}
		st.arriveLocked(h, 1, []stagedPart{c.comes})
		g := st.find(7)
		present := 0
		for _, p := range g.parts {
			if p.sequence != 0 {
				present++
			}
		}
		if got := fmt.Sprintf("%d of %d records", g.version, g.records); got != c.wantAt || fmt.Sprint(g.parts[0].sequence, " ", g.parts[1].sequence) != c.parts || g.present != present || st.bytes.Load() != c.bytes {
			t.Errorf("%s: %s, frames %d and %d, %d present, %d bytes; expected %s, frames %s, %d bytes", name, got, g.parts[0].sequence, g.parts[1].sequence, g.present, st.bytes.Load(), c.wantAt, c.parts, c.bytes)
		}
	}
	st := &stages{byIncarnation: map[uint64]*stage{}}
	st.arriveLocked(h, 0, []stagedPart{{attempt{7, 3, 5, 10}, []float32{1, 2}}})
	st.arriveLocked(h, 1, []stagedPart{{attempt{7, 3, 5, 20}, []float32{3, 4}}})
	st.renumberLocked([]int{1}) // block 0 leaves
	if g := st.find(7); g.present != 1 || len(g.parts) != 1 || g.parts[0].sum[0] != 3 || st.bytes.Load() != 8 {
		t.Errorf("after a block left: %+v, %d bytes", g, st.bytes.Load())
	}
}
