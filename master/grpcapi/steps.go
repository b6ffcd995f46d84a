package grpcapi

import (
	"context"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// LastStep implements the service.
func (c *coordinator) LastStep(ctx context.Context, in *pb.LastStepRequest) (*pb.StepReply, error) {
	o, incarnation := sessionOf(in)
	return stepReply(c.master.LastStep(ctx, &taskqueue.LastStep{Trainer: o, Incarnation: incarnation, Epoch: in.GetEpoch()}))
}

// Flushed implements the service.
func (c *coordinator) Flushed(ctx context.Context, in *pb.FlushedRequest) (*pb.StepReply, error) {
	o, incarnation := sessionOf(in)
	ev := &taskqueue.StepFlushed{Trainer: o, Incarnation: incarnation, Generation: in.GetGeneration(), Step: in.GetStep()}
	for _, p := range in.GetPositions() {
		ev.Positions = append(ev.Positions, taskqueue.TaskPosition{Token: tokenOf(p.GetToken()), Records: p.GetRecords()})
	}
	return stepReply(c.master.Flushed(ctx, ev))
}

// Commit implements the service.
func (c *coordinator) Commit(ctx context.Context, in *pb.StepRequest) (*pb.StepReply, error) {
	o, incarnation := sessionOf(in)
	return stepReply(c.master.CommitStep(ctx, &taskqueue.StepCommit{Trainer: o, Incarnation: incarnation, Generation: in.GetGeneration(), Step: in.GetStep()}))
}

// Rollback implements the service.
func (c *coordinator) Rollback(ctx context.Context, in *pb.StepRequest) (*pb.StepReply, error) {
	o, incarnation := sessionOf(in)
	place, err := c.master.Rollback(ctx, &taskqueue.Rollback{Trainer: o, Incarnation: incarnation, Generation: in.GetGeneration(), Step: in.GetStep()})
	return stepReply(place, true, err)
}

// CutWatch implements the service.
func (c *coordinator) CutWatch(ctx context.Context, in *pb.CutWatchRequest) (*pb.StepReply, error) {
	o, incarnation := sessionOf(in)
	return stepReply(c.master.CutWatch(ctx, &taskqueue.CutWatch{Trainer: o, Incarnation: incarnation}))
}

func stepReply(p taskqueue.StepPlace, done bool, err error) (*pb.StepReply, error) {
	return &pb.StepReply{Step: p.Step, Generation: p.Generation, Epoch: p.Epoch, Uncommitted: uint32(p.Uncommitted), Round: p.Round, Done: done}, err
}
