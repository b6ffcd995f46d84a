package grpcapi

import (
	"context"
	"fmt"
	"math"

	pb "trainmaster/proto/trainmaster/v1"
)

// steer does what a call asks for, in bounded time, unless it is about another job.
func (o *operator) steer(ctx context.Context, job string, do func(context.Context) error) error {
	if err := o.names(job); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return do(ctx)
}

// Drain drains a trainer.
func (o *operator) Drain(ctx context.Context, req *pb.DrainRequest) (*pb.DrainReply, error) {
	if req.GetTrainer() == "" {
		return nil, fmt.Errorf("%w: trainer: expected the id of one, found nothing", errArgument)
	}
	err := o.steer(ctx, req.GetJob(), func(ctx context.Context) error { return o.master.Drain(ctx, req.GetTrainer()) })
	return &pb.DrainReply{}, err
}

// Pause stops dispatches.
func (o *operator) Pause(ctx context.Context, req *pb.PauseRequest) (*pb.PauseReply, error) {
	err := o.steer(ctx, req.GetJob(), func(ctx context.Context) error { return o.master.Pause(ctx, req.GetReason()) })
	return &pb.PauseReply{}, err
}

// Resume resumes a paused job.
func (o *operator) Resume(ctx context.Context, req *pb.ResumeRequest) (*pb.ResumeReply, error) {
	err := o.steer(ctx, req.GetJob(), o.master.Resume)
	return &pb.ResumeReply{}, err
}

// RetryTask puts set-aside tasks back.
func (o *operator) RetryTask(ctx context.Context, req *pb.RetryTaskRequest) (*pb.RetryTaskReply, error) {
	reply := &pb.RetryTaskReply{}
	set := int(req.GetDataset())
	switch which := req.GetWhich().(type) {
	case *pb.RetryTaskRequest_Index:
		index, err := taskIndex(which.Index)
		if err != nil {
			return nil, err
		}
		reply.Retried = 1
		return reply, o.steer(ctx, req.GetJob(), func(ctx context.Context) error { return o.master.RetryTask(ctx, set, index) })
	case *pb.RetryTaskRequest_All:
		if which.All {
			return reply, o.steer(ctx, req.GetJob(), func(ctx context.Context) error {
				n, err := o.master.RetryAllTasks(ctx, set)
				reply.Retried = uint64(n)
				return err
			})
		}
	}
	return nil, fmt.Errorf("%w: which: expected index, or all = true, found neither", errArgument)
}

// DropTask gives a set-aside task up.
func (o *operator) DropTask(ctx context.Context, req *pb.DropTaskRequest) (*pb.DropTaskReply, error) {
	index, err := taskIndex(req.GetIndex())
	if err != nil {
		return nil, err
	}
	err = o.steer(ctx, req.GetJob(), func(ctx context.Context) error { return o.master.DropTask(ctx, int(req.GetDataset()), index) })
	return &pb.DropTaskReply{}, err
}

func taskIndex(index uint64) (int, error) {
	if index > math.MaxInt {
		return 0, fmt.Errorf("%w: index: expected the number of a task, found %d", errArgument, index)
	}
	return int(index), nil
}

// Scale changes the number of parameter servers.
func (o *operator) Scale(ctx context.Context, req *pb.ScaleRequest) (*pb.ScaleReply, error) {
	reply := &pb.ScaleReply{}
	err := o.steer(ctx, req.GetJob(), func(ctx context.Context) error {
		s, err := o.master.Scale(ctx, int(req.GetParameterServers()))
		reply.ParameterServers, reply.Goal, reply.PlacementEpoch = uint32(s.Servers), uint32(s.Goal), s.Epoch
		reply.Moves, reply.Waiting, reply.Done = uint64(s.Moves), s.Waiting, s.Done
		reply.BlocksLeft, reply.Blocks = uint64(s.Left.Blocks), uint64(s.Left.AllBlocks)
		reply.SlotsLeft, reply.Slots = uint64(s.Left.Slots), uint64(s.Left.AllSlots)
		return err
	})
	return reply, err
}
