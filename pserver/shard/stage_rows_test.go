package shard

import (
	"fmt"
	"testing"
	"time"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/table"
)

// stagedTable is a table on one shard.
var stagedTable = table.Config{Name: "t", Dim: 2, Init: table.Zeros}

// viewOf holds some slots of the table.
func viewOf(t *testing.T, slots ...uint32) *View {
	t.Helper()
	placed, err := placement.New([]placement.Tensor{{Name: "w"}}, 1, stagedTable)
	if err != nil {
		t.Fatal(err)
	}
	h := newView(&model.Model{Placement: placed, Sync: true}, 0)
	h.tables = []*table.Table{table.New(placed.Sparse[0], optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, slots, func() *table.Cut { return nil })}
	return h
}

// idOf is an id of a slot.
func idOf(slot uint32) int64 {
	for id := int64(0); ; id++ {
		if table.SlotOf(id) == slot {
			return id
		}
	}
}

// stagedIn shows what a version would be made of.
func stagedIn(g *stage, h *View) string {
	if g.missingRows(h) != "" {
		return ""
	}
	text := fmt.Sprintf("v%d/%d:", g.version, g.records)
	for slot, shares := range sharesOf(0, stagedTable.Dim, []*stage{g}) {
		for _, share := range shares {
			text += fmt.Sprintf(" %d=%v", slot, share.Grads[0])
		}
	}
	return text
}

// A shard without a slot of a table expects no staged rows of it.
func TestNoRowsAreMissingWithoutSlots(t *testing.T) {
	h := viewOf(t)
	if what := newStage(7, h).missingRows(h); what != "" {
		t.Errorf("missing %q", what)
	}
}

// frameOfRow is a frame with a row of slot 1, or 2 in its second part, of value 12.
type frameOfRow struct {
	incarnation, version uint64
	records              uint32
	sequence             uint64
	part, parts          uint32
}

// stageFrame stages it.
func stageFrame(s *Shard, h *View, f frameOfRow) *Refusal {
	slot := 1 + f.part
	rows := table.BatchIn(floats.Bytes(make([]float32, 64)), 1, 1, stagedTable.Dim)
	rows.Spans[0], rows.IDs[0] = table.Span{Slot: slot, Rows: 1}, idOf(slot)
	copy(rows.Values, []float32{12, 12})
	by := Gradient{Version: f.version, Records: f.records, Sequence: f.sequence, Part: f.part, Parts: f.parts}
	return s.stageRows(h, 0, &rows, &Trainer{Trainer: partition.NewTrainer(0, f.incarnation)}, by)
}

// A frame of an attempt that was given up comes when a later one, with another number of records, is there: that one stays.
func TestFrameOfAnEarlierAttempt(t *testing.T) {
	s := New(nil, 1, 1, time.Minute, 1<<30)
	h := viewOf(t, 1, 2)
	s.view.Store(h)
	s.version.Store(3)
	if fault := stageFrame(s, h, frameOfRow{7, 3, 6, 20, 0, 1}); fault != nil {
		t.Fatal(fault)
	}
	if fault := stageFrame(s, h, frameOfRow{7, 3, 5, 10, 0, 1}); fault == nil || fault.Reason != Stale {
		t.Errorf("an earlier attempt: %v", fault)
	}
	if got := stagedIn(s.stages.byIncarnation[7], h); got != "v3/6: 1=12" {
		t.Errorf("%q is staged", got)
	}
	if fault := stageFrame(s, h, frameOfRow{7, 4, 6, 30, 0, 1}); fault == nil || fault.Reason != NotYet {
		t.Errorf("of a version that is still to come: %v", fault)
	}
	if got := stagedIn(s.stages.byIncarnation[7], h); got != "v3/6: 1=12" {
		t.Errorf("%q is staged", got)
	}
}
