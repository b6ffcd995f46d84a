package control

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"trainmaster/internal/cgroup"
	"trainmaster/internal/grpcdial"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/onwire"
	"trainmaster/pserver/persist"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
)

// MaxMessage is the most bytes of a message: a placement table of some million blocks.
const MaxMessage = 64 << 20

// Service implements the gRPC service of a shard: conversion and status codes.
type Service struct {
	pb.UnimplementedParameterServerServer
	shard       *core.Shard
	checkpoints *persist.Checkpoints   // nil: none are kept
	rewinds     *persist.Checkpoints   // as checkpoints; without a place if none are kept, to roll back to the beginning only
	pause       func() (resume func()) // of the data connections
}

// New returns the service of a shard; kept is nil if no checkpoints are kept.
func New(s *core.Shard, kept *persist.Checkpoints, pause func() (resume func()), log *logrus.Entry) *Service {
	c := &Service{shard: s, checkpoints: kept, rewinds: kept, pause: pause}
	if kept == nil {
		c.rewinds = persist.None(s, log)
	}
	return c
}

// OfOneJob returns the options of a server that refuses the calls of other jobs.
func OfOneJob(s *core.Shard) []grpc.ServerOption {
	check := func(ctx context.Context) error {
		return statusOf(s.CheckJob(strings.Join(metadata.ValueFromIncomingContext(ctx, grpcdial.JobKey), ",")))
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := check(ctx); err != nil {
				return nil, err
			}
			return handler(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := check(stream.Context()); err != nil {
				return err
			}
			return handler(service, stream)
		}),
	}
}

func statusOf(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, core.ErrNotClaimed):
		return status.Error(codes.Aborted, err.Error())
	case errors.Is(err, core.ErrIncomplete), errors.Is(err, persist.ErrOldCut), errors.Is(err, persist.ErrNoCut), errors.Is(err, core.ErrOldMove), errors.Is(err, core.ErrBlocksLost), errors.Is(err, core.ErrSyncMove), errors.Is(err, core.ErrNotLeader), errors.Is(err, core.ErrOtherJob), errors.Is(err, core.ErrOverflow), errors.Is(err, persist.ErrUnusable):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, core.ErrMismatch):
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

// Describe implements the service.
func (c *Service) Describe(_ context.Context, request *pb.DescribeRequest) (*pb.DescribeReply, error) {
	s := c.shard
	reply := &pb.DescribeReply{
		Index: uint32(s.Index()), ShardEpoch: uint32(s.Epoch()), JobEpoch: s.JobEpoch(), State: pb.DescribeReply_STATE_EMPTY, Counters: countersToProto(&s.Counters),
	}
	reply.Rewound, reply.Overflow, reply.Unrestored = s.RolledBackTo(), s.Overflow(), s.Unrestored()
	rate := s.Rate()
	reply.LearningRateScale, reply.LearningRateNumber = rate.Scale, rate.Number
	reply.Counters.StagedBytes = uint64(s.StagedBytes())
	if m, ok := cgroup.ReadMemory(cgroup.Root); ok {
		reply.MemoryUsed, reply.MemoryLimit = m.Used, m.Limit
	}
	if c.checkpoints != nil {
		reply.Checkpoint, reply.CheckpointError = c.checkpoints.Status()
		reply.KeepsCheckpoints, reply.LastCut, reply.WantsSet = true, c.checkpoints.LastCut(), c.checkpoints.WantsSet()
	}
	h := s.View()
	if h == nil {
		return reply, nil
	}
	reply.State = pb.DescribeReply_STATE_INITIALISING
	if s.Ready() {
		reply.State = pb.DescribeReply_STATE_READY
	}
	reply.Version, reply.LearningRate = s.Version(), h.Model().Optimizer.LearningRate
	reply.Counters.RowsHeld = uint64(h.RowsHeld())
	for _, t := range h.Tables() {
		reply.TableBytes = append(reply.TableBytes, uint64(t.Bytes()))
	}
	if h.Model().Sync {
		need, rows, limit := s.StageUse(h)
		reply.StageNeed, reply.StageRows, reply.StageLimit = uint64(need), uint64(rows), uint64(limit)
	}
	if request.GetBrief() {
		return reply, nil
	}
	reply.Model, reply.Placement = onwire.ModelToProto(h.Model()), onwire.PlacementToProto(h.Model().Placement)
	return reply, nil
}

// InitParameters implements the service.
func (c *Service) InitParameters(_ context.Context, request *pb.InitParametersRequest) (*pb.InitParametersReply, error) {
	if int(request.GetIndex()) != c.shard.Index() {
		return nil, status.Errorf(codes.FailedPrecondition, "this is shard %d, not %d: look the addresses up again", c.shard.Index(), request.GetIndex())
	}
	if request.GetIncarnation() == 0 {
		return nil, status.Error(codes.InvalidArgument, "incarnation is 0")
	}
	if text := c.shard.Unrestored(); text != "" {
		return nil, status.Errorf(codes.FailedPrecondition, "shard %d waits: %s", c.shard.Index(), text)
	}
	if c.shard.AwaitsPlacement() {
		return nil, status.Errorf(codes.FailedPrecondition, "shard %d does not have its placement yet", c.shard.Index())
	}
	if err := checkEpoch(c.shard, request.GetJobEpoch()); err != nil {
		return nil, err
	}
	m, err := onwire.ModelFromProto(request.GetModel())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	key := c.shard.TableKey // of tables that begin here; a trainer learns the key from the reply
	//guard:table-key-from-request
	if request.TableKey != nil {
		if n := len(request.TableKey); n != 0 && n != table.KeySize {
			return nil, status.Errorf(codes.InvalidArgument, "key of table ids has %d bytes: expected %d, or none", n, table.KeySize)
		}
		key = table.KeyOf(request.TableKey)
	}
	m = m.WithKey(key)
	if c.shard.Index() >= m.Placement.Shards {
		return nil, status.Errorf(codes.InvalidArgument, "your model is spread over %d shards, this is shard %d", m.Placement.Shards, c.shard.Index())
	}
	if err := c.shard.CheckStageRoom(m); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "shard %d: %v", c.shard.Index(), err)
	}
	outcome, holder, view, err := c.shard.Claim(m, request.GetOrdinal(), request.GetIncarnation(), time.Now())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "shard %d: %v", c.shard.Index(), err)
	}
	//guard:placement-of-the-claim
	return &pb.InitParametersReply{Holder: holder, Placement: onwire.PlacementToProto(view.Model().Placement), Outcome: outcomes[outcome]}, nil
}

var outcomes = [...]pb.InitParametersReply_Outcome{
	core.OutcomeReady: pb.InitParametersReply_OUTCOME_READY, core.OutcomeWait: pb.InitParametersReply_OUTCOME_WAIT,
	core.OutcomeClaimed: pb.InitParametersReply_OUTCOME_CLAIMED,
}

// FinishInit implements the service.
func (c *Service) FinishInit(_ context.Context, request *pb.FinishInitRequest) (*pb.FinishInitReply, error) {
	if err := c.shard.Finish(request.GetIncarnation(), c.checkpoints != nil); err != nil {
		return nil, statusOf(err)
	}
	if c.checkpoints != nil {
		c.checkpoints.Begun()
	}
	return &pb.FinishInitReply{}, nil
}

// CommitStep implements the service.
func (c *Service) CommitStep(_ context.Context, request *pb.CommitStepRequest) (*pb.CommitStepReply, error) {
	h := c.shard.View()
	if h == nil || !c.shard.Ready() {
		return nil, status.Errorf(codes.FailedPrecondition, "shard %d has no parameters yet", c.shard.Index())
	}
	if !h.Model().Sync {
		return nil, status.Errorf(codes.FailedPrecondition, "shard %d is updated in mode async: nothing is staged there", c.shard.Index())
	}
	jobEpoch := cmp.Or(request.GetJobEpoch(), c.shard.JobEpoch())
	if jobEpoch > math.MaxUint16 {
		return nil, status.Errorf(codes.InvalidArgument, "job epoch %d: frames have room for %d", jobEpoch, math.MaxUint16)
	}
	if request.GetVersion() > math.MaxUint32 {
		return nil, status.Errorf(codes.InvalidArgument, "version %d: frames have room for %d", request.GetVersion(), uint32(math.MaxUint32))
	}
	scale, err := core.CheckScale(request.GetLearningRateScale())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	contributors := make([]core.Contributor, len(request.GetContributors()))
	for i, t := range request.GetContributors() {
		contributors[i] = core.Contributor{Ordinal: t.GetOrdinal(), Incarnation: t.GetIncarnation(), Records: t.GetRecords()}
	}
	reached, err := c.shard.Commit(jobEpoch, request.GetVersion(), contributors, scale)
	return &pb.CommitStepReply{Version: reached}, statusOf(err)
}

func countersToProto(c *core.Counters) *pb.ParameterServerCounters {
	return &pb.ParameterServerCounters{
		BlocksPulled: c.Pulled.Load(), BlocksPushed: c.Pushed.Load(), Duplicates: c.Duplicates.Load(),
		BlocksStaged: c.Staged.Load(), StepsCommitted: c.Committed.Load(),
		Refused: c.Refused.Load(), Connections: uint64(c.Connections.Load()),
		StaleScaled: c.StaleScaled.Load(), StalenessSum: c.StalenessSum.Load(), StalenessMax: c.StalenessMax.Load(),
		RowsLookedUp: c.RowsLookedUp.Load(), RowsPushed: c.RowsPushed.Load(), RowsStaged: c.RowsStaged.Load(),
	}
}
