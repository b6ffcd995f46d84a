package grpcapi

import (
	"context"
	"math"
	"strings"

	"trainmaster/master/pods"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// steer does what a call asks for, in bounded time, unless it is about another job.
func (a *admin) steer(ctx context.Context, job string, do func(context.Context) error) error {
	if err := a.names(job); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return do(ctx)
}

// Drain drains a trainer.
func (a *admin) Drain(ctx context.Context, req *pb.DrainRequest) (*pb.DrainReply, error) {
	if req.GetTrainer() == "" {
		return nil, badArgument("trainer", "expected the id of one, found nothing")
	}
	err := a.steer(ctx, req.GetJob(), func(ctx context.Context) error { return a.master.Drain(ctx, req.GetTrainer()) })
	return &pb.DrainReply{}, err
}

// StopTasks stops what a trainer runs.
func (a *admin) StopTasks(ctx context.Context, req *pb.StopTasksRequest) (*pb.StopTasksReply, error) {
	if req.GetTrainer() == "" {
		return nil, badArgument("trainer", "expected the id of one, found nothing")
	}
	reply := &pb.StopTasksReply{}
	err := a.steer(ctx, req.GetJob(), func(ctx context.Context) error {
		stopped, err := a.master.StopTasks(ctx, req.GetTrainer())
		for _, task := range stopped {
			reply.TaskIds = append(reply.TaskIds, int64(task.ID()))
		}
		return err
	})
	return reply, err
}

// Evaluate asks for an evaluation round.
func (a *admin) Evaluate(ctx context.Context, req *pb.EvaluateRequest) (*pb.EvaluateReply, error) {
	return &pb.EvaluateReply{}, a.steer(ctx, req.GetJob(), func(ctx context.Context) error { return a.master.Evaluate(ctx, req.GetTrainer()) })
}

// Pause stops dispatches.
func (a *admin) Pause(ctx context.Context, req *pb.PauseRequest) (*pb.PauseReply, error) {
	err := a.steer(ctx, req.GetJob(), func(ctx context.Context) error { return a.master.Pause(ctx, req.GetReason()) })
	return &pb.PauseReply{}, err
}

// Resume resumes a paused job.
func (a *admin) Resume(ctx context.Context, req *pb.ResumeRequest) (*pb.ResumeReply, error) {
	err := a.steer(ctx, req.GetJob(), a.master.Resume)
	return &pb.ResumeReply{}, err
}

// RetryTask puts set-aside tasks back.
func (a *admin) RetryTask(ctx context.Context, req *pb.RetryTaskRequest) (*pb.RetryTaskReply, error) {
	reply := &pb.RetryTaskReply{}
	set := int(req.GetDataset())
	switch which := req.GetWhich().(type) {
	case *pb.RetryTaskRequest_Index:
		index, err := taskIndex(which.Index)
		if err != nil {
			return nil, err
		}
		reply.Retried = 1
		return reply, a.steer(ctx, req.GetJob(), func(ctx context.Context) error { return a.master.RetryTask(ctx, set, index) })
	case *pb.RetryTaskRequest_All:
		if which.All {
			return reply, a.steer(ctx, req.GetJob(), func(ctx context.Context) error {
				n, err := a.master.RetryAllTasks(ctx, set)
				reply.Retried = uint64(n)
				return err
			})
		}
	}
	return nil, badArgument("which", "expected index, or all = true, found neither")
}

// DropTask gives a set-aside task up.
func (a *admin) DropTask(ctx context.Context, req *pb.DropTaskRequest) (*pb.DropTaskReply, error) {
	index, err := taskIndex(req.GetIndex())
	if err != nil {
		return nil, err
	}
	err = a.steer(ctx, req.GetJob(), func(ctx context.Context) error { return a.master.DropTask(ctx, int(req.GetDataset()), index) })
	return &pb.DropTaskReply{}, err
}

func taskIndex(index uint64) (int, error) {
	if index > math.MaxInt {
		return 0, badArgument("index", "expected the number of a task, found %d", index)
	}
	return int(index), nil
}

// Scale changes the number of parameter servers.
func (a *admin) Scale(ctx context.Context, req *pb.ScaleRequest) (*pb.ScaleReply, error) {
	reply := &pb.ScaleReply{}
	err := a.steer(ctx, req.GetJob(), func(ctx context.Context) error {
		s, err := a.master.Scale(ctx, int(req.GetParameterServers()))
		reply.ParameterServers, reply.Goal, reply.PlacementEpoch = uint32(s.Servers), uint32(s.Goal), s.Epoch
		reply.Moves, reply.Waiting, reply.Done = uint64(s.Moves), s.Waiting, s.Done
		reply.BlocksLeft, reply.Blocks = uint64(s.Left.Blocks), uint64(s.Left.AllBlocks)
		reply.SlotsLeft, reply.Slots = uint64(s.Left.Slots), uint64(s.Left.AllSlots)
		return err
	})
	return reply, err
}

// ScaleWorkers changes the number of worker pods.
func (a *admin) ScaleWorkers(ctx context.Context, req *pb.ScaleWorkersRequest) (*pb.ScaleWorkersReply, error) {
	reply := &pb.ScaleWorkersReply{}
	err := a.steer(ctx, req.GetJob(), func(ctx context.Context) error {
		g, err := a.master.ScaleWorkers(ctx, int(req.GetWorkers()))
		reply.Workers, reply.Done = podGroup(&g), g.Done()
		return err
	})
	return reply, err
}

func podGroup(g *pods.Group) *pb.PodGroup {
	return &pb.PodGroup{
		Role: string(g.Role), Goal: uint32(g.Goal), Min: uint32(g.Min), Max: uint32(g.Max), Running: uint32(g.Running), Pending: uint32(g.Pending),
		Completed: uint32(g.Completed), GivenUp: uint32(g.GivenUp), Leaving: uint32(g.Leaving), Reason: strings.ToValidUTF8(g.Reason, "\uFFFD"), GroupSize: uint32(g.Size),
	}
}

// SetJob changes settings of the job.
func (a *admin) SetJob(ctx context.Context, req *pb.SetJobRequest) (*pb.SetJobReply, error) {
	rate := req.GetLearningRate()
	if req.LearningRate != nil && (!(rate > 0) || math.IsInf(float64(rate), 0)) {
		return nil, badArgument("learning_rate", "expected a number above 0, found %v", rate)
	}
	if req.LearningRate == nil && len(req.GetWeights()) == 0 {
		return nil, badArgument("learning_rate", "expected a learning rate or weights, found neither")
	}
	weights := map[string]int{}
	for name, weight := range req.GetWeights() {
		weights[name] = int(weight)
	}
	reply := &pb.SetJobReply{}
	err := a.steer(ctx, req.GetJob(), func(ctx context.Context) error {
		change, err := a.master.SetJob(ctx, rate, weights)
		if req.LearningRate != nil {
			reply.LearningRate = learningRate(change)
		}
		return err
	})
	return reply, err
}

func learningRate(r taskqueue.RateChange) *pb.LearningRate {
	return &pb.LearningRate{Rate: r.Rate, Scale: r.Scale, FromVersion: r.From}
}

// AppendDataset appends files to an online dataset. It takes as long as the caller waits: the files are indexed.
func (a *admin) AppendDataset(ctx context.Context, req *pb.AppendDatasetRequest) (*pb.AppendDatasetReply, error) {
	switch {
	case req.GetName() == "":
		return nil, badArgument("name", "expected the name of an online dataset, found nothing")
	case len(req.GetPaths()) == 0:
		return nil, badArgument("paths", "expected at least one path, glob or URL, found none")
	}
	if err := a.names(req.GetJob()); err != nil {
		return nil, err
	}
	r, err := a.master.AppendDataset(ctx, req.GetName(), req.GetPaths())
	return &pb.AppendDatasetReply{Files: uint64(r.Files), KnownFiles: uint64(r.Known), Tasks: uint64(r.Tasks), TotalTasks: uint64(r.Total)}, err
}

// CloseDataset closes an online dataset. It takes as long as the caller waits, as AppendDataset.
func (a *admin) CloseDataset(ctx context.Context, req *pb.CloseDatasetRequest) (*pb.CloseDatasetReply, error) {
	if req.GetName() == "" {
		return nil, badArgument("name", "expected the name of an online dataset, found nothing")
	}
	if err := a.names(req.GetJob()); err != nil {
		return nil, err
	}
	tasks, err := a.master.CloseDataset(ctx, req.GetName())
	return &pb.CloseDatasetReply{Tasks: uint64(tasks)}, err
}
