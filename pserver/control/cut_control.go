package control

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/onwire"
	"trainmaster/pserver/persist"
)

// cutting returns the checkpoints of a shard that has something to keep, and a place for it.
func (c *Service) cutting() (*persist.Checkpoints, error) {
	switch {
	case c.checkpoints == nil:
		return nil, status.Errorf(codes.FailedPrecondition, "shard %d keeps no checkpoints: start it with --checkpoint-dir", c.shard.Index())
	case !c.shard.Ready():
		return nil, status.Errorf(codes.FailedPrecondition, "shard %d has no parameters yet", c.shard.Index())
	}
	return c.checkpoints, nil
}

// BeginCut implements the service.
func (c *Service) BeginCut(_ context.Context, request *pb.BeginCutRequest) (*pb.BeginCutReply, error) {
	checkpoints, err := c.cutting()
	if err != nil {
		return nil, err
	}
	if err := c.shard.CheckOverflow(); err != nil {
		return nil, statusOf(err)
	}
	version, err := checkpoints.BeginCut(request.GetCut().GetNumber(), request.GetCut().GetTerm(), request.GetJobEpoch())
	if err != nil {
		return nil, statusOf(err)
	}
	h := c.shard.View()
	if h == nil { // a rollback to the beginning has ended the cut
		return nil, status.Errorf(codes.FailedPrecondition, "shard %d has no parameters yet", c.shard.Index())
	}
	m := h.Model()
	return &pb.BeginCutReply{Version: version, Mode: onwire.ModeToProto(m), PlacementEpoch: m.Placement.Epoch}, nil
}

// WriteCut implements the service.
func (c *Service) WriteCut(ctx context.Context, request *pb.WriteCutRequest) (*pb.WriteCutReply, error) {
	checkpoints, err := c.cutting()
	if err != nil {
		return nil, err
	}
	part, err := checkpoints.WriteCut(ctx, request.GetCut().GetNumber(), request.GetCut().GetTerm())
	return &pb.WriteCutReply{Start: part.Start, Sequence: part.Sequence, Sha256: part.SHA256}, statusOf(err)
}

// AbortCut implements the service.
func (c *Service) AbortCut(_ context.Context, request *pb.AbortCutRequest) (*pb.AbortCutReply, error) {
	if c.checkpoints != nil {
		c.checkpoints.AbortCut(request.GetCut().GetNumber(), request.GetCut().GetTerm())
	}
	return &pb.AbortCutReply{}, nil
}

// WriteSet implements the service.
func (c *Service) WriteSet(ctx context.Context, request *pb.WriteSetRequest) (*pb.WriteSetReply, error) {
	checkpoints, err := c.cutting()
	if err != nil {
		return nil, err
	}
	err = checkpoints.WriteSet(ctx, request.GetCut().GetNumber(), request.GetCut().GetTerm(), request.GetSet(), request.GetState())
	return &pb.WriteSetReply{}, statusOf(err)
}

// PruneSets implements the service.
func (c *Service) PruneSets(ctx context.Context, request *pb.PruneSetsRequest) (*pb.PruneSetsReply, error) {
	checkpoints, err := c.cutting()
	if err != nil {
		return nil, err
	}
	number, term := request.GetCut().GetNumber(), request.GetCut().GetTerm()
	if request.GetFailed() {
		err = checkpoints.Discard(ctx, number, term)
	} else {
		err = checkpoints.PruneSets(ctx, number, term, int(request.GetKeep()), request.GetSpared())
	}
	return &pb.PruneSetsReply{}, statusOf(err)
}
