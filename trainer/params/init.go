package params

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/optimizer/onwire"
	"trainmaster/pserver/placement"
	tablewire "trainmaster/pserver/table/onwire"
	"trainmaster/pserver/wire"
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
	table, err := placement.New(shapes(tensors), len(c.links), c.cfg.Tables...)
	if err != nil {
		return err
	}
	declared := make([]Tensor, len(tensors))
	position := map[string]int{}
	for i, t := range tensors {
		declared[i] = Tensor{Name: t.Name, Shape: slices.Clone(t.Shape)}
		position[t.Name] = i
	}
	c.table, c.declared, c.key = table, declared, nil
	for _, l := range c.links {
		l.slots = nil
		for _, b := range table.Owned(l.index) {
			l.slots = append(l.slots, slot{Block: b, tensor: position[table.Tensors[b.Tensor].Name]})
		}
	}
	if err := c.check("tensor", tensors); err != nil {
		return err
	}
	return c.prepare("parameter", wire.Float32, tensors)
}

// initialize returns when every shard has parameters.
func (c *Client) initialize(ctx context.Context, tensors []Tensor) error {
	pause := c.cfg.pause()
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
		if _, lacking := errors.AsType[*shardsError](err); lacking {
			if err := c.refreshLayout(ctx, err); err != nil {
				return err
			}
			continue
		}
		if err != nil && !again(err) {
			return err
		}
		if err := pause.wait(ctx, err); err != nil {
			return err
		}
	}
}

// again reports whether an error means a lost claim or a lost server.
func again(err error) bool {
	var fault *wire.Fault
	if errors.As(err, &fault) {
		return fault.Code == wire.NotClaimed || fault.Code == wire.OtherModel
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.FailedPrecondition:
		return true
	}
	return errors.Is(err, ErrUninitialized) || errors.Is(err, errMoved) || errors.Is(err, errOtherKey)
}

// claim requests the right to initialize the shards in order, up to the
// first shard claimed by another trainer.
func (c *Client) claim(ctx context.Context) (claimed []*link, holder *uint32, err error) {
	key, err := c.learnKey(ctx)
	if err != nil {
		return nil, nil, err
	}
	request := &pb.InitParametersRequest{Model: c.modelToProto(), Ordinal: c.cfg.Ordinal, Incarnation: c.cfg.Incarnation, JobEpoch: c.cfg.JobEpoch}
	for _, l := range c.links {
		request.Index, request.TableKey = uint32(l.index), key.toProto()
		reply, err := l.initParameters(ctx, request)
		if err != nil {
			return nil, nil, err
		}
		switch reply.GetOutcome() {
		case pb.InitParametersReply_OUTCOME_READY:
		case pb.InitParametersReply_OUTCOME_CLAIMED:
			claimed = append(claimed, l)
		default:
			return nil, &reply.Holder, nil
		}
		if key, err = c.checkKey(key, l, reply); err != nil {
			return nil, nil, err
		}
		if err := c.takePlacement(reply.GetPlacement()); err != nil {
			return nil, nil, fmt.Errorf("shard %d: %w", l.index, err)
		}
	}
	return claimed, nil, nil
}

// fill sends the claimed shards their parameters. All shards have them before
// fill marks the first shard as complete.
func (c *Client) fill(ctx context.Context, claimed []*link, tensors []Tensor) error {
	group, groupCtx := errgroup.WithContext(ctx)
	for _, l := range claimed {
		if len(l.slots) > 0 {
			group.Go(func() error { return l.run(groupCtx, call{op: wire.Put, src: tensors}) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, l := range claimed {
		control, err := l.controlClient()
		if err != nil {
			return err
		}
		if err := l.finishInit(ctx, control); err != nil {
			return err
		}
	}
	c.cfg.Log.WithField("shards", len(claimed)).Info("parameters initialized")
	return nil
}

// callAt makes a call that ends when the address no longer serves the shard.
func callAt[R any](ctx context.Context, l *link, control pb.ParameterServerClient, call func(context.Context, pb.ParameterServerClient) (R, error)) (R, error) {
	ctx, release := l.bound(ctx)
	defer release()
	reply, err := call(ctx, control)
	return reply, l.orReplaced(err)
}

func (l *link) finishInit(ctx context.Context, control pb.ParameterServerClient) error {
	ctx, release := l.bound(ctx)
	defer release()
	_, err := control.FinishInit(ctx, &pb.FinishInitRequest{Incarnation: l.client.cfg.Incarnation})
	return l.orReplaced(err)
}

// orReplaced returns err, or a retryable error if the call ended because the server was replaced.
func (l *link) orReplaced(err error) error {
	if err != nil && l.replaced() {
		return status.Error(codes.Unavailable, context.Cause(l.serves).Error())
	}
	return err
}

func (l *link) initParameters(ctx context.Context, request *pb.InitParametersRequest) (*pb.InitParametersReply, error) {
	return callControl(ctx, l, func(ctx context.Context, control pb.ParameterServerClient) (*pb.InitParametersReply, error) {
		return control.InitParameters(ctx, request)
	})
}

// callControl finds the server of the shard and calls it. The error names the shard.
func callControl[R any](ctx context.Context, l *link, call func(context.Context, pb.ParameterServerClient) (*R, error)) (*R, error) {
	if l.replaced() {
		l.drop()
	}
	if err := l.find(ctx); err != nil {
		return nil, err
	}
	control, err := l.controlClient()
	if err != nil {
		return nil, err
	}
	reply, err := callAt(ctx, l, control, call)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if status.Code(err) == codes.OutOfRange {
			return nil, fmt.Errorf("%w: parameter server %d: %w", ErrRewound, l.index, err)
		}
		if again(err) {
			l.lost(err)
			l.drop()
		}
		return nil, fmt.Errorf("parameter server %d: %w", l.index, err)
	}
	return reply, nil
}

func (c *Client) modelToProto() *pb.ParameterModel {
	m := &pb.ParameterModel{
		Optimizer: onwire.ToProto(c.cfg.Optimizer),
		Mode:      pb.UpdateMode_UPDATE_MODE_ASYNC, Shards: uint32(len(c.links)),
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
