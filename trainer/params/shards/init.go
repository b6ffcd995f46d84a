package shards

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/model"
	"trainmaster/pserver/onwire"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/link"
	"trainmaster/trainer/params/plan"
	"trainmaster/trainer/params/stream"
)

// Init declares the model and returns when every shard has parameters. One trainer of the job sets them from tensors, the others wait.
// If that trainer exits before the last shard has its share, another trainer sets the rest.
func (set *Set) Init(ctx context.Context, tensors []plan.Tensor) error {
	if err := set.declare(tensors); err != nil {
		return err
	}
	return set.initialize(ctx, tensors)
}

// declare fixes names, shapes and placement.
func (set *Set) declare(tensors []plan.Tensor) error {
	declared, shapes := make([]plan.Tensor, len(tensors)), make([]placement.Tensor, len(tensors))
	position := map[string]int{}
	for i, t := range tensors {
		declared[i] = plan.Tensor{Name: t.Name, Shape: slices.Clone(t.Shape)}
		shapes[i] = placement.Tensor{Name: t.Name, Shape: t.Shape}
		position[t.Name] = i
	}
	placed, err := placement.New(shapes, len(set.shards), set.cfg.Tables...)
	if err != nil {
		return err
	}
	set.table, set.declared, set.key = placed, declared, nil
	set.blocks, set.progress = make([]plan.Block, len(placed.Owners)), make([]stream.Progress, len(placed.Owners))
	for i, b := range placed.Blocks() {
		set.blocks[i] = plan.Block{Block: b, Tensor: position[placed.Tensors[b.Tensor].Name]}
	}
	set.assignBlocks()
	if err := set.Check("tensor", tensors); err != nil {
		return err
	}
	return plan.Blocks("parameter", set.blocks, wire.Float32, tensors)
}

// initialize returns when every shard has parameters.
func (set *Set) initialize(ctx context.Context, tensors []plan.Tensor) error {
	pause := set.cfg.Link.Backoff()
	told := false
	for {
		claimed, holder, err := set.claim(ctx)
		switch {
		case err == nil && claimed == nil && holder == nil:
			return nil
		case err == nil && holder == nil:
			call := set.Tensors(wire.Put, 0, 0, tensors, nil)
			call.at = claimed
			if err = set.Do(ctx, call); err == nil { // all shards have their parameters before the first is complete
				err = set.finish(ctx, claimed)
			}
			if err == nil {
				continue // ask again: all are ready, or another shard was restarted
			}
		case err == nil:
			if !told {
				set.cfg.Link.Log.WithField("initializer", *holder).Info("waiting for another trainer to initialize the parameters")
				told = true
			}
		}
		if _, lacking := errors.AsType[*link.ShardsError](err); lacking {
			if err := set.refreshLayout(ctx, err); err != nil {
				return err
			}
			continue
		}
		if err != nil && !link.Again(err) && !errors.Is(err, errOtherKey) {
			return err
		}
		if err := pause.Wait(ctx, err); err != nil {
			return err
		}
	}
}

// claim requests the right to initialize the shards in order, up to the
// first shard claimed by another trainer.
func (set *Set) claim(ctx context.Context) (claimed []*shard, holder *uint32, err error) {
	key, err := set.learnKey(ctx)
	if err != nil {
		return nil, nil, err
	}
	id := &set.cfg.Link.Stream
	m := &model.Model{Optimizer: set.cfg.Optimizer, Sync: set.cfg.Sync, Staleness: set.cfg.Staleness, Placement: set.table}
	request := &pb.InitParametersRequest{Model: onwire.ModelToProto(m), Ordinal: id.Ordinal, Incarnation: id.Incarnation, JobEpoch: set.cfg.Link.JobEpoch}
	for _, s := range set.shards {
		request.Index, request.TableKey = uint32(s.Index), key.toProto()
		reply, err := link.Call(ctx, s.Link, pb.ParameterServerClient.InitParameters, request)
		if err != nil {
			return nil, nil, err
		}
		switch reply.GetOutcome() {
		case pb.InitParametersReply_OUTCOME_READY:
		case pb.InitParametersReply_OUTCOME_CLAIMED:
			claimed = append(claimed, s)
		default:
			return nil, &reply.Holder, nil
		}
		if key, err = set.checkKey(key, s.Index, reply); err != nil {
			return nil, nil, err
		}
		if err := set.takePlacement(reply.GetPlacement()); err != nil {
			return nil, nil, fmt.Errorf("shard %d: %w", s.Index, err)
		}
	}
	return claimed, nil, nil
}

// finish marks the claimed shards as complete. If another server has taken a shard over since it got its parameters, that server
// refuses: the incarnation has no claim there.
func (set *Set) finish(ctx context.Context, claimed []*shard) error {
	request := &pb.FinishInitRequest{Incarnation: set.cfg.Link.Stream.Incarnation}
	for _, s := range claimed {
		if _, err := link.Call(ctx, s.Link, pb.ParameterServerClient.FinishInit, request); err != nil {
			return err
		}
	}
	set.cfg.Link.Log.WithField("shards", len(claimed)).Info("parameters initialized")
	return nil
}
