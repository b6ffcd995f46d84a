package pserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// A table on one shard whose slots a test gives and takes.
var stagedTable = table.Config{Name: "t", Dim: 2, Init: table.Zeros}

// holdingOf holds some slots of the table.
func holdingOf(t *testing.T, slots ...uint32) *holding {
	t.Helper()
	placed, err := placement.New([]placement.Tensor{{Name: "w"}}, 1, stagedTable)
	if err != nil {
		t.Fatal(err)
	}
	h := newHolding(&model.Model{Placement: placed, Sync: true}, 0)
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

// stageAt has trainer 7 stage at version 3 a row of value for each slot, in the first of so many frames.
func stageAt(st *stages, h *holding, frames int, value float32, slots ...uint32) *stage {
	g := newStage(7, h)
	g.version, g.records = 3, 5
	p := rowPart{sequence: 20}
	for _, slot := range slots {
		p.rows.Spans = append(p.rows.Spans, wire.Span{Slot: slot, Rows: 1})
		p.rows.IDs = append(p.rows.IDs, idOf(slot))
		p.rows.Values = append(p.rows.Values, value, value)
	}
	g.rows[0].parts, g.rows[0].present, g.rows[0].since = make([]rowPart, frames), 1, 20
	g.rows[0].parts[0] = p
	st.byIncarnation[7] = g
	return g
}

func arriving(slot uint32, a attempt, value float32) *slotArrival {
	return &slotArrival{slotID: slotID{0, slot}, staged: []*stagedRows{{attempt: a, ids: []int64{idOf(slot)}, grads: []float32{value, value}}}}
}

// Of what is staged that of the slots that are held counts, each once, wherever it came from; where it came without, or where the
// trainer is still staging, the trainer has to stage the table again.
func TestStagedRowsMeet(t *testing.T) {
	same, earlier, later, others := attempt{7, 3, 5, 20}, attempt{7, 2, 5, 9}, attempt{7, 4, 5, 30}, attempt{7, 3, 6, 40}
	for name, c := range map[string]struct {
		before, after []uint32
		here          func(*stages, *holding)
		arrived       []*slotArrival
		want          string // slots with their values, "" for: not whole
	}{
		"a slot comes":           {[]uint32{1}, []uint32{1, 2}, func(st *stages, h *holding) { stageAt(st, h, 1, 10, 1) }, []*slotArrival{arriving(2, same, 11)}, "v3/5: 1=10 2=11"},
		"a slot goes":            {[]uint32{1, 2}, []uint32{2}, func(st *stages, h *holding) { stageAt(st, h, 1, 10, 1, 2) }, nil, "v3/5: 2=10"},
		"one goes, one comes":    {[]uint32{1, 2}, []uint32{2, 3}, func(st *stages, h *holding) { stageAt(st, h, 1, 10, 1, 2) }, []*slotArrival{arriving(3, same, 11)}, "v3/5: 2=10 3=11"},
		"nothing was held":       {nil, []uint32{2, 3}, func(*stages, *holding) {}, []*slotArrival{arriving(2, same, 11), arriving(3, same, 12)}, "v3/5: 2=11 3=12"},
		"nothing is touched":     {[]uint32{1}, []uint32{1, 2}, func(st *stages, h *holding) { stageAt(st, h, 1, 10) }, []*slotArrival{{slotID: slotID{0, 2}, staged: []*stagedRows{{attempt: same}}}}, "v3/5:"},
		"still staging here":     {[]uint32{1}, []uint32{1, 2}, func(st *stages, h *holding) { stageAt(st, h, 2, 10, 1) }, []*slotArrival{arriving(2, same, 11)}, ""},
		"not staged there":       {[]uint32{1}, []uint32{1, 2, 3}, func(st *stages, h *holding) { stageAt(st, h, 1, 10, 1) }, []*slotArrival{arriving(2, same, 11), {slotID: slotID{0, 3}}}, ""},
		"not staged here":        {[]uint32{1}, []uint32{1, 2}, func(*stages, *holding) {}, []*slotArrival{arriving(2, same, 11)}, ""},
		"an earlier one comes":   {[]uint32{1}, []uint32{1, 2}, func(st *stages, h *holding) { stageAt(st, h, 1, 10, 1) }, []*slotArrival{arriving(2, earlier, 11)}, ""},
		"a later one comes":      {[]uint32{1}, []uint32{1, 2}, func(st *stages, h *holding) { stageAt(st, h, 1, 10, 1) }, []*slotArrival{arriving(2, later, 11)}, ""},
		"another attempt comes":  {[]uint32{1}, []uint32{1, 2}, func(st *stages, h *holding) { stageAt(st, h, 1, 10, 1) }, []*slotArrival{arriving(2, others, 11)}, ""},
		"only later ones arrive": {nil, []uint32{2}, func(st *stages, h *holding) { stageAt(st, h, 1, 10) }, []*slotArrival{arriving(2, later, 11)}, "v4/5: 2=11"},
	} {
		old, h := holdingOf(t, c.before...), holdingOf(t, c.after...)
		st := &stages{limit: 1 << 20, byIncarnation: map[uint64]*stage{}}
		c.here(st, old)
		st.placeRowsLocked(old, h, c.arrived)
		g := st.find(7)
		if got := stagedIn(g, h); got != c.want {
			t.Errorf("%s: %q is staged, expected %q", name, got, c.want)
		}
		if what := g.missingRows(h); (what == "") != (c.want != "") {
			t.Errorf("%s: missing %q", name, what)
		}
	}
}

// stagedIn shows what a version would be made of.
func stagedIn(g *stage, h *holding) string {
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

// A slot that went and comes back has its rows once.
func TestStagedRowsThereAndBack(t *testing.T) {
	both, one := holdingOf(t, 1, 2), holdingOf(t, 1)
	st := &stages{limit: 1 << 20, byIncarnation: map[uint64]*stage{}}
	g := stageAt(st, both, 1, 10, 1, 2)
	came := &slotArrival{slotID: slotID{0, 2}, staged: []*stagedRows{g.rowsOf(slotID{0, 2}, stagedTable.Dim)}}
	st.placeRowsLocked(both, one, nil)
	st.placeRowsLocked(one, both, []*slotArrival{came})
	if got := stagedIn(g, both); got != "v3/5: 1=10 2=10" {
		t.Errorf("%q is staged", got)
	}
}

// A table of which no slot is here is not asked for: where a slot came from says that its trainer staged it.
func TestNoRowsAreMissingWithoutSlots(t *testing.T) {
	h := holdingOf(t)
	if what := newStage(7, h).missingRows(h); what != "" {
		t.Errorf("missing %q", what)
	}
}

// A trainer that stages a table again, by the new placement, replaces all that it staged by the old one, in however many frames that was.
func TestStagingAgainReplacesWhatArrived(t *testing.T) {
	s := openTableShard(t, t.TempDir(), 1)
	h := holdingOf(t, 1, 2)
	h.model.Placement.Epoch = 2
	s.holding.Store(h)
	s.version.Store(3)
	st := &s.stages
	g := stageAt(st, h, 1, 10, 1)
	g.rows[0].epoch = 1
	st.placeRowsLocked(holdingOf(t, 1), h, []*slotArrival{arriving(2, attempt{7, 3, 5, 20}, 11)})
	for part := range uint32(2) {
		if fault := stageFrame(s, h, frameOfRow{attempt{7, 3, 5, uint64(30 + part)}, part, 2}); fault != nil {
			t.Fatal(fault)
		}
		if got := stagedIn(g, h); (got == "") != (part == 0) {
			t.Errorf("after frame %d of 2 %q is staged", part+1, got)
		}
	}
	if got := stagedIn(g, h); got != "v3/5: 1=12 2=12" {
		t.Errorf("%q is staged", got)
	}
}

// frameOfRow is a frame with a row of slot 1, or 2 in its second part, of value 12.
type frameOfRow struct {
	attempt
	part, parts uint32
}

// stageFrame stages it.
func stageFrame(s *tableShard, h *holding, f frameOfRow) *wire.Fault {
	slot := 1 + f.part
	body, rows := wire.Layout(wire.FloatBytes(make([]float32, 64)), 1, 1, stagedTable.Dim)
	wire.Number(body, f.part, f.parts)
	rows.Part, rows.Parts = f.part, f.parts
	rows.Spans[0], rows.IDs[0] = wire.Span{Slot: slot, Rows: 1}, idOf(slot)
	copy(rows.Values, []float32{12, 12})
	head := &wire.Header{Op: wire.StageRows, Step: f.version, Argument: f.records, Sequence: f.sequence}
	return s.stageRows(h, rowFrame{table: h.tables[0], rows: rows}, &trainer{incarnation: f.incarnation}, head)
}

// While a slot leaves nothing is staged for its table, also not for its other slots; nor ever for a placement that is over.
func TestNothingIsStagedWhileSlotsLeave(t *testing.T) {
	s := openTableShard(t, t.TempDir(), 1)
	h := holdingOf(t, 1, 2)
	s.holding.Store(h)
	s.version.Store(3)
	want := func(what string, code wire.Code) {
		t.Helper()
		if fault := stageFrame(s, h, frameOfRow{attempt{7, 3, 5, 30}, 0, 2}); (fault == nil) != (code == 0) || fault != nil && fault.Code != code {
			t.Errorf("%s: %v", what, fault)
		}
	}
	if err := h.freezeSlot(slotID{0, 2}); err != nil {
		t.Fatal(err)
	}
	want("another slot is frozen", wire.Wait)
	h.tables[0].Thaw()
	want("it stays", 0)
	next := holdingOf(t, 1)
	next.model.Placement.Epoch++
	s.holding.Store(next)
	want("another placement", wire.Moved)
}

// Another leader ends the move, and a version is made without a trainer, while what that one staged is on its way: the rest is not sent.
func TestMoveEndsWhileStagedRowsAreSent(t *testing.T) {
	s := openTableShard(t, t.TempDir(), 1)
	h := holdingOf(t, 1, 2)
	h.model.Placement.Epoch, h.model.Optimizer.LearningRate = 1, 1
	h.model.Optimizer.Kind = optimizer.SGD
	h.model.Rule = h.model.Optimizer.Rule()
	h.blocks, h.byID = nil, map[uint64]*block{}
	s.holding.Store(h)
	s.ready.Store(true)
	s.version.Store(3)
	for _, incarnation := range []uint64{7, 8} {
		if fault := stageFrame(s, h, frameOfRow{attempt{incarnation, 3, 5, incarnation}, 0, 1}); fault != nil {
			t.Fatal(fault)
		}
	}
	id := slotID{0, 2}
	if err := s.freezeBlocks(t.Context(), 1, 2, nil, []slotID{id}); err != nil {
		t.Fatal(err)
	}
	sent := 0
	err := s.readSlot(1, 2, id, func(slotPiece) error {
		sent++
		if _, err := s.settle(2, 1, nil); err != nil {
			t.Error(err)
		}
		_, _, err := s.commit(1, 4, []contributor{{0, 7, 5}}, 1)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "not frozen any more") || sent != 1 {
		t.Errorf("%d pieces were sent: %v", sent, err)
	}
}

// A frame of an attempt that was given up comes when a later one, with another number of records, is there: that one stays.
func TestFrameOfAnEarlierAttempt(t *testing.T) {
	s := openTableShard(t, t.TempDir(), 1)
	h := holdingOf(t, 1, 2)
	s.holding.Store(h)
	s.version.Store(3)
	if fault := stageFrame(s, h, frameOfRow{attempt{7, 3, 6, 20}, 0, 1}); fault != nil {
		t.Fatal(fault)
	}
	if fault := stageFrame(s, h, frameOfRow{attempt{7, 3, 5, 10}, 0, 1}); fault == nil || fault.Code != wire.Stale {
		t.Errorf("an earlier attempt: %v", fault)
	}
	if got := stagedIn(s.stages.find(7), h); got != "v3/6: 1=12" {
		t.Errorf("%q is staged", got)
	}
	if fault := stageFrame(s, h, frameOfRow{attempt{7, 4, 6, 30}, 0, 1}); fault == nil || fault.Code != wire.Wait {
		t.Errorf("of a version that is still to come: %v", fault)
	}
	if got := stagedIn(s.stages.find(7), h); got != "v3/6: 1=12" {
		t.Errorf("%q is staged", got)
	}
}

// What is staged for a slot and damaged on the way, or does not fit it, is refused with the slot.
func TestStagedRowsThatAreRefused(t *testing.T) {
	s, id, pieces := piecesOf(t)
	row := idOf(id.slot)
	good := pieceToProto(slotPiece{slotID: id, staged: &stagedRows{attempt{7, 3, 5, 20}, []int64{row}, make([]float32, 4000)}})
	for want, change := range map[string]func(m *pb.StagedRows){
		"":                                    func(*pb.StagedRows) {},
		"was damaged on the way":              func(m *pb.StagedRows) { m.Gradients[7] ^= 1 },
		"4000 floats are staged for 2 ids":    func(m *pb.StagedRows) { m.Ids = append(m.Ids, row); m.Sha256 = digestOfStaged(m) },
		fmt.Sprintf("id %d is staged", row+1): func(m *pb.StagedRows) { m.Ids[0]++; m.Sha256 = digestOfStaged(m) },
	} {
		m := proto.Clone(good).(*pb.SlotPiece)
		change(m.GetStaged())
		err := s.takeBlocks(t.Context(), 1, 2, nil, []slotID{id}, given(slices.Concat([]*pb.SlotPiece{m}, pieces)))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		s.moving.slots, s.moving.taken = nil, nil
	}
}
