package control

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"google.golang.org/grpc"

	pb "trainmaster/proto/trainmaster/v1"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

func slotsFromProto(list []*pb.TableSlots) (ids []core.SlotID) {
	for _, t := range list {
		for _, slot := range t.GetSlots() {
			ids = append(ids, core.SlotID{Table: t.GetTable(), Slot: slot})
		}
	}
	return ids
}

func slotsToProto(ids []core.SlotID) (list []*pb.TableSlots) {
	for i, id := range ids {
		if i == 0 || ids[i-1].Table != id.Table {
			list = append(list, &pb.TableSlots{Table: id.Table})
		}
		last := list[len(list)-1]
		last.Slots = append(last.Slots, id.Slot)
	}
	return list
}

// ReadSlots implements the service.
func (c *Service) ReadSlots(request *pb.ReadSlotsRequest, stream grpc.ServerStreamingServer[pb.SlotPiece]) error {
	for _, id := range slotsFromProto(request.GetSlots()) {
		if err := c.shard.ReadSlot(request.GetMove().GetTerm(), request.GetMove().GetEpoch(), id, func(p core.SlotPiece) error {
			return stream.Send(pieceToProto(p))
		}); err != nil {
			return statusOf(err)
		}
	}
	return nil
}

// Slots implements core.Source.
func (r *remote) Slots(ids []core.SlotID, add func(core.SlotPiece) error) error {
	stream, err := r.server.ReadSlots(r.ctx, &pb.ReadSlotsRequest{Move: r.move, Slots: slotsToProto(ids)})
	for err == nil {
		var m *pb.SlotPiece
		if m, err = stream.Recv(); err != nil {
			break
		}
		p, err := pieceFromProto(m)
		if err == nil {
			err = add(p)
		}
		if err != nil {
			return err
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("read slots of %s: %w", r.addr, err)
}

func pieceToProto(p core.SlotPiece) *pb.SlotPiece {
	i := p.Image
	m := &pb.SlotPiece{
		Table: p.Table, Slot: p.Slot, Ids: i.IDs, Versions: i.Versions, Updates: i.Updates, Values: wire.FloatBytes(i.Values),
		Clock: i.Clock, Rows: uint32(i.LiveRows), Last: p.Last, Retired: retirementToProto(&p.Retired),
	}
	for _, w := range i.Candidates {
		m.WaitingIds, m.WaitingUpdates, m.WaitingVersions = append(m.WaitingIds, w.ID), append(m.WaitingUpdates, w.Updates), append(m.WaitingVersions, w.Version)
	}
	for _, by := range p.Applied {
		m.Applied = append(m.Applied, &pb.AppliedStep{Ordinal: by.Ordinal, Incarnation: by.Incarnation, Step: by.Step})
	}
	m.Sha256 = digestOfPiece(m)
	return m
}

func pieceFromProto(m *pb.SlotPiece) (core.SlotPiece, error) {
	p := core.SlotPiece{SlotID: core.SlotID{Table: m.GetTable(), Slot: m.GetSlot()}, Last: m.GetLast()}
	p.Retired = retirementFromProto(m.GetRetired())
	if !bytes.Equal(digestOfPiece(m), m.GetSha256()) {
		return p, fmt.Errorf("%w: slot %d of table %d was damaged on the way: its digest is another one", core.ErrMismatch, p.Slot, p.Table)
	}
	n := len(m.GetWaitingIds())
	if len(m.GetValues())%4 != 0 || len(m.GetWaitingUpdates()) != n || len(m.GetWaitingVersions()) != n {
		return p, fmt.Errorf("%w: slot %d of table %d came with %d bytes of values, and %d waiting ids with %d and %d numbers",
			core.ErrMismatch, p.Slot, p.Table, len(m.GetValues()), n, len(m.GetWaitingUpdates()), len(m.GetWaitingVersions()))
	}
	p.Image = &table.Image{
		Clock: m.GetClock(), LiveRows: int(m.GetRows()), IDs: m.GetIds(), Versions: m.GetVersions(), Updates: m.GetUpdates(), Values: floatsOf(m.GetValues()),
	}
	for k, id := range m.GetWaitingIds() {
		p.Image.Candidates = append(p.Image.Candidates, table.Candidate{ID: id, Updates: m.GetWaitingUpdates()[k], Version: m.GetWaitingVersions()[k]})
	}
	for _, by := range m.GetApplied() {
		p.Applied = append(p.Applied, core.AppliedStep{Ordinal: by.GetOrdinal(), Incarnation: by.GetIncarnation(), Step: by.GetStep()})
	}
	return p, nil
}

func digestOfPiece(m *pb.SlotPiece) []byte {
	sum := sha256.New()
	sum.Write(m.GetValues())
	addNumbers(sum, m.GetIds())
	addNumbers(sum, m.GetVersions())
	addNumbers(sum, m.GetUpdates())
	addNumbers(sum, m.GetWaitingIds())
	addNumbers(sum, m.GetWaitingUpdates())
	addNumbers(sum, m.GetWaitingVersions())
	return sum.Sum(nil)
}

func addNumbers[T int64 | uint32](sum hash.Hash, list []T) {
	binary.Write(sum, binary.LittleEndian, list) //nolint:errcheck // a hash takes everything
}
