package params

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/optimizer/onwire"
	"trainmaster/pserver/placement"
	tablewire "trainmaster/pserver/table/onwire"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/link"
	"trainmaster/trainer/params/plan"
)

// Init declares the model and makes sure that the servers have its parameters: one trainer of the job sets them from tensors, the
// others wait. Then Init fills tensors with the parameters on the servers; after a restart of the job they can come from a
// checkpoint. If the initializing trainer exits while the servers take its parameters over, another trainer sets the rest.
func (c *Client) Init(ctx context.Context, tensors []Tensor) error {
	if err := c.declare(tensors); err != nil {
		return fmt.Errorf("initialize parameters: %w", err)
	}
	if err := c.initialize(ctx, tensors); err != nil {
		return fmt.Errorf("initialize parameters: %w", err)
	}
	_, err := c.Pull(ctx, tensors, 0)
	return err
}

// declare fixes names, shapes and placement.
func (c *Client) declare(tensors []Tensor) error {
	declared, shapes := make([]Tensor, len(tensors)), make([]placement.Tensor, len(tensors))
	position := map[string]int{}
	for i, t := range tensors {
		declared[i] = Tensor{Name: t.Name, Shape: slices.Clone(t.Shape)}
		shapes[i] = placement.Tensor{Name: t.Name, Shape: t.Shape}
		position[t.Name] = i
	}
	table, err := placement.New(shapes, len(c.shards), c.cfg.Tables...)
	if err != nil {
		return err
	}
	c.table, c.declared, c.key = table, declared, nil
	c.blocks = make([]plan.Block, len(table.Owners))
	for i, b := range table.Blocks() {
		c.blocks[i] = plan.Block{Block: b, Tensor: position[table.Tensors[b.Tensor].Name]}
	}
	c.assignBlocks()
	if err := c.check("tensor", tensors); err != nil {
		return err
	}
	return plan.Blocks("parameter", c.blocks, wire.Float32, tensors)
}

// initialize returns when every shard has parameters.
func (c *Client) initialize(ctx context.Context, tensors []Tensor) error {
	pause := c.link.Backoff()
	told := false
	for {
		claimed, holder, err := c.claim(ctx)
		switch {
		case err == nil && claimed == nil && holder == nil:
			return nil
		case err == nil && holder == nil:
			err = c.fill(ctx, claimed, tensors)
			if err == nil {
				continue // ask again: all are ready, or another shard was restarted
			}
		case err == nil:
			if !told {
				c.cfg.Log.WithField("initializer", *holder).Info("waiting for another trainer to initialize the parameters")
				told = true
			}
		}
		if _, lacking := errors.AsType[*link.ShardsError](err); lacking {
			if err := c.refreshLayout(ctx, err); err != nil {
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
func (c *Client) claim(ctx context.Context) (claimed []*shard, holder *uint32, err error) {
	key, err := c.learnKey(ctx)
	if err != nil {
		return nil, nil, err
	}
	request := &pb.InitParametersRequest{Model: c.modelToProto(), Ordinal: c.cfg.Ordinal, Incarnation: c.cfg.Incarnation, JobEpoch: c.cfg.JobEpoch}
	for _, s := range c.shards {
		request.Index, request.TableKey = uint32(s.Index), key.toProto()
		reply, err := link.Call(ctx, s.Link, func(ctx context.Context, control pb.ParameterServerClient) (*pb.InitParametersReply, error) {
			return control.InitParameters(ctx, request)
		})
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
		if key, err = c.checkKey(key, s.Index, reply); err != nil {
			return nil, nil, err
		}
		if err := c.takePlacement(reply.GetPlacement()); err != nil {
			return nil, nil, fmt.Errorf("shard %d: %w", s.Index, err)
		}
	}
	return claimed, nil, nil
}

// fill sends the claimed shards their parameters. All shards have them before
// fill marks the first shard as complete.
func (c *Client) fill(ctx context.Context, claimed []*shard, tensors []Tensor) error {
	if err := c.do(ctx, &blockCall{request: request{op: wire.Put}, client: c, src: tensors}, claimed); err != nil {
		return err
	}
	for _, s := range claimed {
		if _, err := link.Call(ctx, s.Link, func(ctx context.Context, control pb.ParameterServerClient) (*pb.FinishInitReply, error) {
			return control.FinishInit(ctx, &pb.FinishInitRequest{Incarnation: c.cfg.Incarnation}) // another server has no claim and refuses
		}); err != nil {
			return err
		}
	}
	c.cfg.Log.WithField("shards", len(claimed)).Info("parameters initialized")
	return nil
}

func (c *Client) modelToProto() *pb.ParameterModel {
	m := &pb.ParameterModel{
		Optimizer: onwire.ToProto(c.cfg.Optimizer),
		Mode:      pb.UpdateMode_UPDATE_MODE_ASYNC, Shards: uint32(len(c.shards)),
		Staleness: &pb.StalenessBound{Policy: c.cfg.Staleness.Policy, Limit: c.cfg.Staleness.Limit},
		Tables:    tablewire.ToProto(c.cfg.Tables),
	}
	if c.cfg.Mode == Sync {
		m.Mode = pb.UpdateMode_UPDATE_MODE_SYNC
	}
	for _, t := range c.declared {
		tensor := &pb.ParameterTensor{Name: t.Name}
		for _, d := range t.Shape {
			tensor.Shape = append(tensor.Shape, int64(d))
		}
		m.Tensors = append(m.Tensors, tensor)
	}
	return m
}
