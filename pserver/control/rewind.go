package control

import (
	"context"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/migrate"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
)

// Rewind implements the service.
func (c *Service) Rewind(ctx context.Context, request *pb.RewindRequest) (*pb.RewindReply, error) {
	if c.checkpoints == nil && len(request.GetSet()) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "shard %d keeps no checkpoints: start it with --checkpoint-dir", c.shard.Index())
	}
	if request.GetJobEpoch() == 0 || request.GetJobEpoch() > math.MaxUint16 {
		return nil, status.Errorf(codes.InvalidArgument, "job epoch %d: expected 1 to %d", request.GetJobEpoch(), math.MaxUint16)
	}
	var layout *placement.Layout
	if text := request.GetPlacement(); len(text) > 0 {
		var err error
		if layout, err = placement.ParseLayout(text); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	ctx = context.WithoutCancel(ctx) // who asks again waits for this one
	return &pb.RewindReply{}, statusOf(c.rewinds.Rewind(ctx, request.GetTerm(), request.GetJobEpoch(), request.GetSet(), layout, c.pause))
}

// checkEpoch compares the job epoch of a trainer with the shard's.
func checkEpoch(s *core.Shard, epoch uint32) error {
	at := s.JobEpoch()
	switch {
	case epoch == 0 || epoch == at:
		return nil
	case epoch > at:
		return status.Errorf(codes.Aborted, "trainer has job epoch %d, shard %d is still at %d", epoch, s.Index(), at)
	}
	return status.Errorf(codes.OutOfRange, "trainer has job epoch %d, shard %d is at %d: the job was rolled back", epoch, s.Index(), at)
}

// Retire implements the service.
func (c *Service) Retire(_ context.Context, request *pb.RetireRequest) (*pb.RetireReply, error) {
	r := request.GetRetired()
	if len(r.GetJob()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "job is empty: expected the id of the job whose trainers are retired")
	}
	return &pb.RetireReply{}, statusOf(c.shard.Retire(request.GetTerm(), migrate.RetirementFromProto(r), request.Version))
}

// SetLearningRate implements the service.
func (c *Service) SetLearningRate(_ context.Context, request *pb.SetLearningRateRequest) (*pb.SetLearningRateReply, error) {
	if request.GetNumber() == 0 || request.GetScale() == 0 {
		return nil, status.Errorf(codes.InvalidArgument, "learning rate: expected a number and a factor above 0, found number %d and factor %v", request.GetNumber(), request.GetScale())
	}
	scale, err := core.CheckScale(request.GetScale())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if h := c.shard.View(); h != nil && h.Model().Sync {
		return nil, status.Errorf(codes.FailedPrecondition, "shard %d is updated in mode sync: each step has its learning rate", c.shard.Index())
	}
	return &pb.SetLearningRateReply{}, statusOf(c.shard.SetRate(request.GetTerm(), core.Rate{Number: request.GetNumber(), Scale: scale}))
}
