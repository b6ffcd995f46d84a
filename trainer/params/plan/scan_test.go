package plan

import (
	"fmt"
	"slices"
	"testing"

	"trainmaster/pserver/table"
)

// yield receives whole slots, once, for any number of frames. Rows of an interrupted slot are dropped and read again.
func TestScanGivesWholeSlots(t *testing.T) {
	var got []string
	s := Scan{Dim: 1, Yield: func(ids []int64, values []float32) error {
		got = append(got, fmt.Sprint(ids, values))
		return nil
	}}
	frame := func(next uint32, slots ...uint32) {
		var rows table.Batch
		for _, slot := range slots { // two rows of each
			rows.Spans = append(rows.Spans, table.Span{Slot: slot, Rows: 2})
			rows.IDs, rows.Values = append(rows.IDs, int64(slot), int64(slot)+1), append(rows.Values, float32(slot), float32(slot))
		}
		if err := s.Take(&rows, next); err != nil {
			t.Fatal(err)
		}
	}
	wants := func(want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("given %v, expected %v", got, want)
		}
		got = nil
	}
	frame(50, 10, 50)
	wants("[10 11] [10 10]")
	frame(50, 50)
	wants()
	frame(70, 50, 70)
	wants("[50 51 50 51 50 51] [50 50 50 50 50 50]")
	s.Drop() // it went elsewhere
	s.Done[50] = true
	frame(70, 50, 70)
	frame(table.Slots)
	wants("[70 71] [70 70]")
}
