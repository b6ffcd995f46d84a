package control

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/migrate"
	"trainmaster/pserver/model"
	"trainmaster/pserver/onwire"
	"trainmaster/pserver/placement"
)

// Freeze implements the service.
func (c *Service) Freeze(ctx context.Context, request *pb.FreezeRequest) (*pb.FreezeReply, error) {
	return &pb.FreezeReply{}, statusOf(c.shard.Freeze(ctx, migrate.MoveOf(request.GetMove()), migrate.Partitions(request.GetPartitions()), time.Now()))
}

// Read implements the service.
func (c *Service) Read(request *pb.ReadRequest, stream grpc.ServerStreamingServer[pb.SealedPiece]) error {
	return statusOf(migrate.Send(c.shard, request, stream))
}

// Take implements the service.
func (c *Service) Take(ctx context.Context, request *pb.TakeRequest) (*pb.TakeReply, error) {
	return &pb.TakeReply{}, statusOf(migrate.Take(ctx, c.shard, request))
}

// SetPlacement implements the service.
func (c *Service) SetPlacement(_ context.Context, request *pb.SetPlacementRequest) (*pb.SetPlacementReply, error) {
	layout, err := placement.ParseLayout(request.GetPlacement())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	var m *model.Model
	if request.GetModel() != nil {
		if m, err = onwire.ModelFromProto(request.GetModel()); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	endMove := c.shard.Settle
	if h := c.shard.View(); c.checkpoints != nil && (h == nil || h.Model().Placement.Epoch != layout.Epoch) {
		endMove = c.checkpoints.Settle
	}
	wanted, err := endMove(request.GetTerm(), layout, m, time.Now())
	return &pb.SetPlacementReply{Wanted: wanted}, statusOf(err)
}
