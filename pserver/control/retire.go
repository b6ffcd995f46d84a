package control

import (
	"context"
	"encoding/hex"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	core "trainmaster/pserver/shard"
)

// Retire implements the service.
func (c *Service) Retire(_ context.Context, request *pb.RetireRequest) (*pb.RetireReply, error) {
	r := request.GetRetired()
	if len(r.GetJob()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "job is empty: expected the id of the job whose trainers are retired")
	}
	return &pb.RetireReply{}, statusOf(c.shard.Retire(request.GetTerm(), retirementFromProto(r), request.Version))
}

func retirementFromProto(r *pb.Retirement) core.Retirement {
	return core.NewRetirement(hex.EncodeToString(r.GetJob()), r.GetFloor(), r.GetSpared())
}

// retirementToProto returns nil if no incarnation was retired.
func retirementToProto(r *core.Retirement) *pb.Retirement {
	if r.Job == "" {
		return nil
	}
	job, _ := hex.DecodeString(r.Job) // as newRetirement's caller, or a checkpoint with its digest, has it
	return &pb.Retirement{Job: job, Floor: r.Floor, Spared: r.SparedList()}
}
