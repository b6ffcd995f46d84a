package bench

import (
	"context"
	"errors"
	"net/rpc"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"trainmaster/internal/grpcdial"
	"trainmaster/pserver/floats"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/trainer/params"
)

const rolePusher = "pusher"

// pusherConfig is a trainer in a process of its own, which computes nothing.
type pusherConfig struct {
	Via     psVia
	MiB     int // of the model
	Addrs   []string
	Ordinal int
	DType   params.WireDType

	Optimizer optimizer.Config // only frames have a choice
}

// pushSteps is how many push-pulls of the whole model are measured together.
const pushSteps = 3

// pushed is what they took.
type pushed struct {
	Bytes int64 // of float32, there and back
	CPU   time.Duration
}

// serve says that it is ready, and pushes as often as its parent says.
func (c *pusherConfig) serve(ctx context.Context, p *parent) error {
	values, grads := c.model()
	step, stop, err := c.connect(ctx, values, grads)
	if err != nil {
		return err
	}
	if err := step(); err != nil { // connections, buffers and pools grow
		return errors.Join(err, stop())
	}
	if err := p.out.Encode(struct{}{}); err != nil {
		return err
	}
	for p.await() {
		began := processorTime()
		for range pushSteps {
			if err := step(); err != nil {
				return errors.Join(err, stop())
			}
		}
		if err := p.out.Encode(pushed{Bytes: 2 * pushSteps * 4 * int64(len(values)), CPU: processorTime() - began}); err != nil {
			return err
		}
	}
	return stop()
}

// model is parameters and gradients that no arithmetic is slow for.
func (c *pusherConfig) model() (values, grads []float32) {
	values, grads = make([]float32, c.MiB*placement.BlockElements), make([]float32, c.MiB*placement.BlockElements)
	for i := range grads {
		values[i], grads[i] = 1, 1e-3
	}
	return values, grads
}

// connect returns what pushes grads and gets values once.
func (c *pusherConfig) connect(ctx context.Context, values, grads []float32) (step, stop func() error, err error) {
	switch c.Via {
	case viaMemory:
		return withoutWire(values, grads), func() error { return nil }, nil
	case viaGRPC:
		return c.overGRPC(ctx, values, grads)
	case viaGob:
		return c.overGob(values, grads)
	}
	return c.overFrames(ctx, values, grads)
}

// blockOf is a block of a model.
func blockOf(f []float32, block int) []float32 {
	return f[block*placement.BlockElements:][:placement.BlockElements]
}

func (c *pusherConfig) overFrames(ctx context.Context, values, grads []float32) (step, stop func() error, err error) {
	client, err := params.Connect(ctx, params.Config{
		Addrs: func(context.Context) ([]string, error) { return slices.Clone(c.Addrs), nil },
		Mode:  params.Async, Optimizer: c.Optimizer, Ordinal: uint32(c.Ordinal), Incarnation: uint64(c.Ordinal) + 1, WireDType: c.DType, Log: silent(),
	})
	if err != nil {
		return nil, nil, err
	}
	model := func(data []float32) []params.Tensor {
		return []params.Tensor{{Name: "w", Shape: []int{c.MiB, placement.BlockElements}, Data: data}}
	}
	if err := client.Init(ctx, model(values)); err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	n := uint64(0)
	return func() error {
		n++
		_, err := client.PushPull(ctx, n, 1, model(grads), model(values))
		return err
	}, client.Close, nil
}

// withoutWire is a step without a wire: each direction is copied twice, as through a socket
// whose buffer stays in the cache, and SGD is done.
func withoutWire(values, grads []float32) (step func() error) {
	held, block, piece := make([]float32, len(values)), make([]float32, placement.BlockElements), make([]float32, 1<<14)
	rule := psOptimizer.Rule()
	twice := func(dst, src []float32) {
		for lo := 0; lo < len(src); lo += len(piece) {
			copy(piece, src[lo:])
			copy(dst[lo:], piece)
		}
	}
	return func() error {
		for i := range len(held) / placement.BlockElements {
			twice(block, blockOf(grads, i))
			rule.Apply(blockOf(held, i), block, optimizer.State{}, optimizer.Step{Count: 1, Scale: 1})
			twice(blockOf(values, i), blockOf(held, i))
		}
		return nil
	}
}

func (c *pusherConfig) overGRPC(ctx context.Context, values, grads []float32) (step, stop func() error, err error) {
	conn, err := grpcdial.Open(c.Addrs[0],
		grpc.WithInitialWindowSize(grpcWindow), grpc.WithInitialConnWindowSize(grpcWindow), grpc.WithReadBufferSize(grpcBuffer), grpc.WithWriteBufferSize(grpcBuffer))
	if err != nil {
		return nil, nil, err
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, exchangeMethod)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return func() error {
		var group errgroup.Group
		group.Go(func() error {
			for i := range c.MiB {
				if err := stream.SendMsg(wrapperspb.Bytes(floats.Bytes(blockOf(grads, i)))); err != nil {
					return err
				}
			}
			return nil
		})
		group.Go(func() error {
			for i := range c.MiB {
				var m wrapperspb.BytesValue
				if err := stream.RecvMsg(&m); err != nil {
					return err
				}
				copy(floats.Bytes(blockOf(values, i)), m.Value)
			}
			return nil
		})
		return group.Wait()
	}, conn.Close, nil
}

// gobCalls is how many are under way at a time.
const gobCalls = 4

func (c *pusherConfig) overGob(values, grads []float32) (step, stop func() error, err error) {
	client, err := rpc.Dial("tcp", c.Addrs[0])
	if err != nil {
		return nil, nil, err
	}
	return func() error {
		var group errgroup.Group
		group.SetLimit(gobCalls)
		for i := range c.MiB {
			group.Go(func() error {
				out := GobBlock{Data: blockOf(values, i)} // decoded in place
				return client.Call("Parameters.PushPull", &GobBlock{i, blockOf(grads, i)}, &out)
			})
		}
		return group.Wait()
	}, client.Close, nil
}
