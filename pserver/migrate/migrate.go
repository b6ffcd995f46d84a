// Package migrate copies partitions, blocks and slots of tables, from one parameter server to another. A partition is sent in pieces
// with a digest each. The destination requests the copy, so a leader calls the destination alone. A copy that fails changes no
// shard: the leader starts over, or ends the migration.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"trainmaster/internal/grpcdial"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/shard"
)

// maxPiece is the maximum size of a message: a block with its state, and the steps of its trainers.
const maxPiece = 64 << 20

// MoveOf is the move that a message names.
func MoveOf(m *pb.Move) shard.Move { return shard.Move{Term: m.GetTerm(), Epoch: m.GetEpoch()} }

// Partitions lists the partitions that a message names.
func Partitions(list []*pb.Partitions) (ids []partition.ID) {
	for _, some := range list {
		for _, number := range some.GetNumbers() {
			ids = append(ids, partition.ID{Table: some.GetTable(), Number: number})
		}
	}
	return ids
}

// Send sends the frozen partitions of a request.
func Send(s *shard.Shard, request *pb.ReadRequest, stream grpc.ServerStreamingServer[pb.SealedPiece]) error {
	for _, id := range Partitions(request.GetPartitions()) {
		if err := s.Read(MoveOf(request.GetMove()), id, func(p *shard.Piece) error {
			sealed, err := seal(pieceToProto(p))
			if err == nil {
				err = stream.Send(sealed)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// Take copies the partitions of a request from their source.
func Take(ctx context.Context, s *shard.Shard, request *pb.TakeRequest) error {
	conn, err := grpcdial.Open(request.GetSource(), grpcdial.OfJob(s.Job), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPiece)))
	if err != nil {
		return fmt.Errorf("%w: source %q: %w", shard.ErrMismatch, request.GetSource(), err)
	}
	defer conn.Close()
	return s.Take(ctx, MoveOf(request.GetMove()), Partitions(request.GetPartitions()), func(add func(*shard.Piece) error) error {
		stream, err := pb.NewParameterServerClient(conn).Read(ctx, &pb.ReadRequest{Move: request.GetMove(), Partitions: request.GetPartitions()})
		for err == nil {
			var sealed *pb.SealedPiece
			if sealed, err = stream.Recv(); err == nil {
				err = addPiece(sealed, add)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return fmt.Errorf("copy from %s: %w", request.GetSource(), err)
	})
}

func addPiece(sealed *pb.SealedPiece, add func(*shard.Piece) error) error {
	m, err := unseal(sealed)
	if err != nil {
		return err
	}
	p, err := pieceFromProto(m)
	if err != nil {
		return err
	}
	return add(p)
}
