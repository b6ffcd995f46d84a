package migrate

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
)

// next is the first step of a migration.
var next = core.Move{Term: 1, Epoch: 2}

// piecesOf returns the pieces of a frozen slot of wide rows, and the shard that holds the slot.
func piecesOf(t *testing.T) (s *core.Shard, id partition.ID, pieces []*pb.PartitionPiece) {
	t.Helper()
	s = core.New(nil, 1, 1, time.Minute, 1<<30)
	wide := table.Config{Name: "wide", Dim: 4000, Init: table.Uniform, Scale: 1, Expiry: 100, Admission: 2}
	placed, err := placement.New([]placement.Tensor{{Name: "w"}}, 2, wide)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.Adam}, false, placed)
	if err != nil {
		t.Fatal(err)
	}
	h := begin(t, s, m)
	slot := h.Tables()[0].Held()[3]
	id = partition.Slot(0, slot)
	who, fault := join(t, s, 1, 2)
	if fault != nil {
		t.Fatal(fault)
	}
	step := uint64(0)
	for row, seen := int64(0), 0; seen < 60; row++ {
		if table.SlotOf(row) != slot {
			continue
		}
		for range 1 + seen%2 { // every second one is not admitted yet
			step++
			batch := table.Batch{Spans: []table.Span{{Slot: slot, Rows: 1}}, IDs: []int64{row}, Values: make([]float32, wide.Dim)}
			if _, err := h.Tables()[0].Update(&batch, who.Trainer, table.Step{Number: step, Scale: 1}, nil); err != nil {
				t.Fatal(err)
			}
		}
		seen++
	}
	if err := s.Freeze(t.Context(), next, []partition.ID{id}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := s.Read(next, id, func(p *core.Piece) error {
		pieces = append(pieces, proto.Clone(pieceToProto(p)).(*pb.PartitionPiece))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return s, id, pieces
}

// The pieces of a large slot have about 1 MiB each.
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
		rows, waiting = rows+len(p.GetSlot().GetIds()), waiting+len(p.GetSlot().GetWaitingIds())
	}
	if rows != 30 || waiting != 30 || len(pieces) < 2 {
		t.Errorf("%d pieces have %d rows and %d waiting ids: expected 30 of each in several", len(pieces), rows, waiting)
	}
}

func mustSeal(t *testing.T, p *pb.PartitionPiece) *pb.SealedPiece {
	t.Helper()
	sealed, err := seal(p)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

// A damaged, missing or unexpected piece is refused with its reason, and the destination keeps nothing.
func TestPiecesThatAreRefused(t *testing.T) {
	s, id, pieces := piecesOf(t)
	for want, change := range map[string]func(list []*pb.SealedPiece) []*pb.SealedPiece{
		"":                       func(list []*pb.SealedPiece) []*pb.SealedPiece { return list },
		"was damaged":            func(list []*pb.SealedPiece) []*pb.SealedPiece { list[1].Piece[9] ^= 1; return list },
		"damaged in transfer":    func(list []*pb.SealedPiece) []*pb.SealedPiece { list[len(list)-1].Sha256[31]++; return list },
		"expected 30 rows":       func(list []*pb.SealedPiece) []*pb.SealedPiece { return list[1:] },
		"partitions are missing": func(list []*pb.SealedPiece) []*pb.SealedPiece { return list[:1] },
		"duplicate id":           func(list []*pb.SealedPiece) []*pb.SealedPiece { return append(list[:1:1], list...) },
		"was not requested": func(list []*pb.SealedPiece) []*pb.SealedPiece {
			return append([]*pb.SealedPiece{mustSeal(t, &pb.PartitionPiece{Table: id.Table, Number: id.Number + 1})}, list...)
		},
	} {
		var list []*pb.SealedPiece
		for _, p := range pieces {
			list = append(list, mustSeal(t, p))
		}
		err := s.Take(t.Context(), next, []partition.ID{id}, func(add func(*core.Piece) error) error {
			for _, m := range change(list) {
				if err := addPiece(m, add); err != nil {
					return err
				}
			}
			return nil
		})
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		if taken := s.HasTaken(); taken != (want == "") {
			t.Errorf("%q: taken %v", want, taken)
		}
		if _, err := s.Settle(1, placement.LayoutOf(s.View().Model().Placement, 2), nil, time.Now()); err != nil { // it drops what was taken
			t.Fatal(err)
		}
	}
}

// Partitions are named table by table on the wire.
func TestPartitionsOnTheWire(t *testing.T) {
	got := Partitions([]*pb.Partitions{{Numbers: []uint64{5, 6}}, {Table: 3, Numbers: []uint64{5}}})
	if want := []partition.ID{partition.Block(5), partition.Block(6), partition.Slot(2, 5)}; !reflect.DeepEqual(got, want) {
		t.Errorf("expected %v, found %v", want, got)
	}
}
