package migrate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/floats"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/shard"
	"trainmaster/pserver/table"
)

func pieceToProto(p *shard.Piece) *pb.PartitionPiece {
	m := &pb.PartitionPiece{Table: p.Table, Number: p.Number, Last: p.Last, Retired: retirementToProto(&p.Retired)}
	if b := p.Block; b != nil {
		m.Content = &pb.PartitionPiece_Block{Block: &pb.BlockContent{
			Parameters: floats.Bytes(b.Params), State: floats.Bytes(b.State), Updates: b.Updates, Version: b.Version,
		}}
	}
	if i := p.Rows; i != nil {
		slot := &pb.SlotContent{
			Ids: i.IDs, Versions: i.Versions, Updates: i.Updates, Values: floats.Bytes(i.Values), Clock: i.Clock, Rows: uint32(i.LiveRows),
		}
		for _, w := range i.Candidates {
			slot.WaitingIds, slot.WaitingUpdates, slot.WaitingVersions = append(slot.WaitingIds, w.ID), append(slot.WaitingUpdates, w.Updates), append(slot.WaitingVersions, w.Version)
		}
		m.Content = &pb.PartitionPiece_Slot{Slot: slot}
	}
	for _, by := range p.Applied {
		m.Applied = append(m.Applied, &pb.AppliedStep{Ordinal: by.Ordinal, Incarnation: by.Incarnation, Step: by.Step})
	}
	return m
}

// seal adds the digest of a piece.
func seal(m *pb.PartitionPiece) (*pb.SealedPiece, error) {
	piece, err := proto.Marshal(m)
	sum := sha256.Sum256(piece)
	return &pb.SealedPiece{Piece: piece, Sha256: sum[:]}, err
}

// unseal checks the digest.
func unseal(sealed *pb.SealedPiece) (*pb.PartitionPiece, error) {
	if sum := sha256.Sum256(sealed.GetPiece()); !bytes.Equal(sum[:], sealed.GetSha256()) {
		return nil, fmt.Errorf("%w: piece of %d bytes was damaged in transfer: expected the digest %x, found %x", shard.ErrMismatch, len(sealed.GetPiece()), sealed.GetSha256(), sum)
	}
	m := &pb.PartitionPiece{}
	return m, proto.Unmarshal(sealed.GetPiece(), m)
}

func pieceFromProto(m *pb.PartitionPiece) (*shard.Piece, error) {
	p := &shard.Piece{ID: partition.ID{Table: m.GetTable(), Number: m.GetNumber()}, Last: m.GetLast()}
	p.Retired = RetirementFromProto(m.GetRetired())
	if b := m.GetBlock(); b != nil {
		p.Block = &shard.Image{Params: floatsOf(b.GetParameters()), State: floatsOf(b.GetState()), Updates: b.GetUpdates(), Version: b.GetVersion()}
	}
	if i := m.GetSlot(); i != nil {
		n := len(i.GetWaitingIds())
		if len(i.GetWaitingUpdates()) != n || len(i.GetWaitingVersions()) != n {
			return nil, fmt.Errorf("%w: %v: expected %d counts and versions of ids without a row, found %d and %d", shard.ErrMismatch, p.ID, n, len(i.GetWaitingUpdates()), len(i.GetWaitingVersions()))
		}
		p.Rows = &table.Image{
			Clock: i.GetClock(), LiveRows: int(i.GetRows()), IDs: i.GetIds(), Versions: i.GetVersions(), Updates: i.GetUpdates(), Values: floatsOf(i.GetValues()),
		}
		for k, id := range i.GetWaitingIds() {
			p.Rows.Candidates = append(p.Rows.Candidates, table.Candidate{ID: id, Updates: i.GetWaitingUpdates()[k], Version: i.GetWaitingVersions()[k]})
		}
	}
	for _, by := range m.GetApplied() {
		p.Applied = append(p.Applied, shard.AppliedStep{Ordinal: by.GetOrdinal(), Incarnation: by.GetIncarnation(), Step: by.GetStep()})
	}
	return p, nil
}

func floatsOf(b []byte) []float32 {
	values := make([]float32, len(b)/4)
	copy(floats.Bytes(values), b)
	return values
}

// RetirementFromProto is the retirement that a message describes.
func RetirementFromProto(r *pb.Retirement) shard.Retirement {
	return shard.NewRetirement(hex.EncodeToString(r.GetJob()), r.GetFloor(), r.GetSpared())
}

// retirementToProto returns nil if no incarnation was retired.
func retirementToProto(r *shard.Retirement) *pb.Retirement {
	if r.Job == "" {
		return nil
	}
	job, _ := hex.DecodeString(r.Job) // as NewRetirement's caller, or a checkpoint with its digest, has it
	return &pb.Retirement{Job: job, Floor: r.Floor, Spared: r.Spared}
}
