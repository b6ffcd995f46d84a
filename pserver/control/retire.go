package control

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/migrate"
)

// Retire implements the service.
func (c *Service) Retire(_ context.Context, request *pb.RetireRequest) (*pb.RetireReply, error) {
	r := request.GetRetired()
	if len(r.GetJob()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "job is empty: expected the id of the job whose trainers are retired")
	}
	return &pb.RetireReply{}, statusOf(c.shard.Retire(request.GetTerm(), migrate.RetirementFromProto(r), request.Version))
}
