package control

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/proto"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// piecesOf is a frozen slot of wide rows as it goes over the wire, and the shard that has it.
func piecesOf(t *testing.T) (s *core.Shard, id core.SlotID, pieces []*pb.SlotPiece) {
	t.Helper()
	s = core.New(logrus.NewEntry(logrus.New()), 1, 1, time.Minute, 1<<30)
	wide := table.Config{Name: "wide", Dim: 4000, Init: table.Uniform, Scale: 1, Admission: 2}
	placed, err := placement.New([]placement.Tensor{{Name: "w"}}, 2, wide)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.Adam}, false, placed)
	if err != nil {
		t.Fatal(err)
	}
	h := begin(t, s, m)
	id = core.SlotID{Slot: h.Tables()[0].Held()[3]}
	who, fault := join(t, s, 1, 2)
	if fault != nil {
		t.Fatal(fault)
	}
	step := uint64(0)
	for row, seen := int64(0), 0; seen < 60; row++ {
		if table.SlotOf(row) != id.Slot {
			continue
		}
		for range 1 + seen%2 { // every second one is not admitted yet
			step++
			batch := wire.Rows{Spans: []wire.Span{{Slot: id.Slot, Rows: 1}}, IDs: []int64{row}, Values: make([]float32, wide.Dim)}
			if _, err := h.Tables()[0].Update(&batch, who.Column(0), table.Step{Number: step, Scale: 1}); err != nil {
				t.Fatal(err)
			}
		}
		seen++
	}
	if err := s.FreezeBlocks(t.Context(), 1, 2, nil, []core.SlotID{id}); err != nil {
		t.Fatal(err)
	}
	if err := s.ReadSlot(1, 2, id, func(p core.SlotPiece) error {
		pieces = append(pieces, proto.Clone(pieceToProto(p)).(*pb.SlotPiece))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return s, id, pieces
}

// However large a slot is, it goes in messages of about 1 MiB.
func TestPiecesAreBounded(t *testing.T) {
	_, _, pieces := piecesOf(t)
	rows, waiting := 0, 0
	for i, p := range pieces {
		if size := proto.Size(p); size > core.PieceBytes+3*4*4000 {
			t.Errorf("piece %d has %d bytes", i, size)
		}
		if p.GetLast() != (i == len(pieces)-1) || p.GetLast() != (len(p.GetApplied()) > 0) {
			t.Errorf("piece %d of %d says last: %v, with %d steps", i, len(pieces), p.GetLast(), len(p.GetApplied()))
		}
		rows, waiting = rows+len(p.GetIds()), waiting+len(p.GetWaitingIds())
	}
	if rows != 30 || waiting != 30 || len(pieces) < 2 {
		t.Errorf("%d pieces have %d rows and %d waiting ids: expected 30 of each in several", len(pieces), rows, waiting)
	}
}

// What is damaged on the way, or left out, or not what was asked for is refused as a whole, and said.
func TestPiecesThatAreRefused(t *testing.T) {
	s, id, pieces := piecesOf(t)
	for want, change := range map[string]func(list []*pb.SlotPiece) []*pb.SlotPiece{
		"":                   func(list []*pb.SlotPiece) []*pb.SlotPiece { return list },
		"was damaged":        func(list []*pb.SlotPiece) []*pb.SlotPiece { list[1].Values[9] ^= 1; return list },
		"damaged on the way": func(list []*pb.SlotPiece) []*pb.SlotPiece { list[len(list)-1].WaitingUpdates[0]++; return list },
		"rows: expected 30":  func(list []*pb.SlotPiece) []*pb.SlotPiece { return list[1:] },
		"slots did not come": func(list []*pb.SlotPiece) []*pb.SlotPiece { return list[:1] },
		"duplicate id":       func(list []*pb.SlotPiece) []*pb.SlotPiece { return append(list[:1:1], list...) },
		"was not asked for":  func(list []*pb.SlotPiece) []*pb.SlotPiece { list[0].Slot++; return list },
	} {
		var list []*pb.SlotPiece
		for _, p := range pieces {
			list = append(list, proto.Clone(p).(*pb.SlotPiece))
		}
		err := s.TakeBlocks(t.Context(), 1, 2, nil, []core.SlotID{id}, given(change(list)))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		if taken := s.Taken() > 0; taken != (want == "") {
			t.Errorf("%q: taken %v", want, taken)
		}
		if _, err := s.Settle(1, 1, nil); err != nil { // it drops what was taken
			t.Fatal(err)
		}
	}
}

// given is a source that has pieces.
type given []*pb.SlotPiece

func (given) Block(uint64) (*core.MovedBlock, error) { return nil, core.ErrMismatch }

func (g given) Slots(_ []core.SlotID, add func(core.SlotPiece) error) error {
	for _, m := range g {
		p, err := pieceFromProto(m)
		if err == nil {
			err = add(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Slots are named table by table on the wire, and are the same there and back.
func TestSlotsOnTheWire(t *testing.T) {
	ids := []core.SlotID{{Slot: 5}, {Slot: 6}, {Table: 2, Slot: 5}, {Slot: 7}}
	if got := slotsFromProto(slotsToProto(ids)); !reflect.DeepEqual(got, ids) {
		t.Errorf("%v became %v", ids, got)
	}
}
