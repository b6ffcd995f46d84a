package control

import (
	"context"
	"crypto/sha256"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/model"
	modelwire "trainmaster/pserver/model/onwire"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table/onwire"
	"trainmaster/pserver/wire"
)

// FreezeBlocks implements the service.
func (c *Service) FreezeBlocks(ctx context.Context, request *pb.FreezeBlocksRequest) (*pb.FreezeBlocksReply, error) {
	move := request.GetMove()
	return &pb.FreezeBlocksReply{}, statusOf(c.shard.FreezeBlocks(ctx, move.GetTerm(), move.GetEpoch(), request.GetBlocks(), slotsFromProto(request.GetSlots())))
}

// ReadBlock implements the service.
func (c *Service) ReadBlock(_ context.Context, request *pb.ReadBlockRequest) (*pb.ReadBlockReply, error) {
	a, err := c.shard.ReadBlock(request.GetMove().GetTerm(), request.GetMove().GetEpoch(), request.GetBlock())
	if err != nil {
		return nil, statusOf(err)
	}
	reply := &pb.ReadBlockReply{
		Parameters: wire.FloatBytes(a.Params), State: wire.FloatBytes(a.State), Updates: a.Updates, Version: a.Version,
	}
	for _, by := range a.Applied {
		reply.Applied = append(reply.Applied, &pb.AppliedStep{Ordinal: by.Ordinal, Incarnation: by.Incarnation, Step: by.Step})
	}
	reply.Sha256 = digestOf(reply)
	reply.Retired = retirementToProto(&a.Retired)
	return reply, nil
}

func digestOf(r *pb.ReadBlockReply) []byte {
	sum := sha256.New()
	sum.Write(r.GetParameters())
	sum.Write(r.GetState())
	return sum.Sum(nil)
}

// TakeBlocks implements the service.
func (c *Service) TakeBlocks(ctx context.Context, request *pb.TakeBlocksRequest) (*pb.TakeBlocksReply, error) {
	conn, err := grpc.NewClient("passthrough:///"+request.GetSource(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage)))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	defer conn.Close()
	move := request.GetMove()
	from := &remote{ctx, pb.NewParameterServerClient(conn), request.GetSource(), move}
	err = c.shard.TakeBlocks(ctx, move.GetTerm(), move.GetEpoch(), request.GetBlocks(), slotsFromProto(request.GetSlots()), from)
	return &pb.TakeBlocksReply{}, statusOf(err)
}

// remote is a source in another process, for one request.
type remote struct {
	ctx    context.Context //nolint:containedctx // it lives as long as the request
	server pb.ParameterServerClient
	addr   string
	move   *pb.Move
}

// Block implements core.Source.
func (r *remote) Block(id uint64) (*core.MovedBlock, error) {
	reply, err := r.server.ReadBlock(r.ctx, &pb.ReadBlockRequest{Move: r.move, Block: id})
	if err != nil {
		return nil, fmt.Errorf("read block %d of %s: %w", id, r.addr, err)
	}
	return arrivalOf(id, reply)
}

func arrivalOf(id uint64, r *pb.ReadBlockReply) (*core.MovedBlock, error) {
	if string(digestOf(r)) != string(r.GetSha256()) {
		return nil, fmt.Errorf("%w: block %d was damaged on the way: its digest is another one", core.ErrMismatch, id)
	}
	a := &core.MovedBlock{
		Image:   core.Image{Params: floatsOf(r.GetParameters()), State: floatsOf(r.GetState()), Updates: r.GetUpdates(), Version: r.GetVersion()},
		Retired: retirementFromProto(r.GetRetired()),
	}
	for _, by := range r.GetApplied() {
		a.Applied = append(a.Applied, core.AppliedStep{Ordinal: by.GetOrdinal(), Incarnation: by.GetIncarnation(), Step: by.GetStep()})
	}
	return a, nil
}

func floatsOf(b []byte) []float32 {
	floats := make([]float32, len(b)/4)
	copy(wire.FloatBytes(floats), b)
	return floats
}

// SetPlacement implements the service.
func (c *Service) SetPlacement(_ context.Context, request *pb.SetPlacementRequest) (*pb.SetPlacementReply, error) {
	var m *model.Model
	if request.GetPlacement() != nil {
		var err error
		if m, err = placedFromProto(request.GetModel(), request.GetPlacement()); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		if h := c.shard.View(); h != nil && !h.Model().EqualButOwners(m) || m.Placement.Epoch != request.GetMove().GetEpoch() {
			return nil, status.Errorf(codes.InvalidArgument, "shard %d has another model, or the placement is not that of epoch %d", c.shard.Index(), request.GetMove().GetEpoch())
		}
	}
	wanted, err := c.settle(request, m)
	if err != nil {
		return nil, statusOf(err)
	}
	return &pb.SetPlacementReply{Wanted: wanted}, nil
}

// settle excludes checkpoints, whose cuts are of one placement.
func (c *Service) settle(request *pb.SetPlacementRequest, m *model.Model) (wanted bool, err error) {
	term, epoch := request.GetMove().GetTerm(), request.GetMove().GetEpoch()
	if c.checkpoints != nil && m != nil {
		return c.checkpoints.Settle(term, epoch, m)
	}
	return c.shard.Settle(term, epoch, m)
}

func placedFromProto(described *pb.ParameterModel, p *pb.ParameterPlacement) (*model.Model, error) {
	m, err := modelwire.FromProto(described)
	if err != nil {
		return nil, err
	}
	l := &placement.Layout{Epoch: p.GetEpoch(), Shards: int(p.GetShards()), Owners: p.GetOwners()}
	for _, owners := range onwire.SlotsFromProto(p.GetSlotOwners()) {
		l.Slots = append(l.Slots, owners)
	}
	return m.WithLayout(l)
}
