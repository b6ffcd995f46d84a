package bench

import (
	"context"
	"net"
	"net/rpc"
	"sync"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"trainmaster/pserver"
	"trainmaster/pserver/floats"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
)

// psVia is a way between a trainer and a parameter server.
type psVia string

const (
	viaFrames psVia = "frames"      // the project's own
	viaMemory psVia = "memory"      // none: the limit
	viaGRPC   psVia = "grpc-bytes"  // a stream of messages with a field of bytes
	viaGob    psVia = "gob-float32" // net/rpc, []float32
)

var psVias = []psVia{viaFrames, viaMemory, viaGRPC, viaGob}

// psOptimizer is plain SGD, with a rate that leaves the parameters where they are.
var psOptimizer = optimizer.Config{Kind: optimizer.SGD, LearningRate: 1e-9}

const roleShard = "shard"

// shardConfig is a parameter server in a process of its own.
type shardConfig struct {
	Via     psVia
	MiB     int // of the model
	Index   int
	Sockets string // directory for the data socket, or pserver.SocketOff

	Checkpoints string // directory for them; "": none
}

// serve says where it listens, and then how much processor time it has used, as often as it is asked.
func (c *shardConfig) serve(ctx context.Context, p *parent) error {
	d, err := servePort(ctx, c.serveData)
	if err != nil {
		return err
	}
	if err := p.out.Encode(d.addr); err != nil {
		return err
	}
	for p.await() {
		if err := p.out.Encode(processorTime()); err != nil {
			return err
		}
	}
	return d.close()
}

// serveData serves l until ctx ends.
func (c *shardConfig) serveData(ctx context.Context, l net.Listener) error {
	held := &heldParameters{values: make([]float32, c.MiB*placement.BlockElements), rule: psOptimizer.Rule()}
	switch c.Via {
	case viaGRPC:
		return held.serveGRPC(ctx, l)
	case viaGob:
		return held.serveGob(ctx, l)
	}
	s, err := pserver.New(pserver.Config{
		Registry: seat(c.Index), Listener: l, DataSocket: c.Sockets, CheckpointDir: c.Checkpoints, Log: silent(),
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// seat is a registry with one index, and the claim to it.
type seat int

func (s seat) ClaimPS(context.Context, string, func(string)) (pserver.Claim, error) { return s, nil }
func (s seat) Job() pserver.JobState                                                { return pserver.JobState{} }
func (s seat) Current(context.Context) (pserver.JobState, error)                    { return s.Job(), nil }
func (s seat) AskSet(context.Context) error                                         { return nil }
func (s seat) Index() int                                                           { return int(s) }
func (s seat) Lost() <-chan struct{}                                                { return nil }
func (s seat) Release(context.Context) error                                        { return nil }

// heldParameters are the parameters in the measurements of other protocols, without checksums, epochs or duplicates.
type heldParameters struct {
	rule optimizer.Rule

	mu     sync.Mutex
	values []float32
}

// pushPull applies a block's gradient and returns the block itself.
func (h *heldParameters) pushPull(block int, grad []float32) []float32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	params := h.values[block*placement.BlockElements:][:len(grad)]
	h.rule.Apply(params, grad, optimizer.State{}, optimizer.Step{Count: 1, Scale: 1})
	return params
}

const exchangeMethod = "/bench.Parameters/Exchange"

// grpcWindow is the size of windows and buffers, with which gRPC is fastest.
const grpcWindow, grpcBuffer = 64 << 20, 512 << 10

// serveGRPC receives the blocks of the model in order, and answers each.
func (h *heldParameters) serveGRPC(ctx context.Context, l net.Listener) error {
	exchange := func(_ any, stream grpc.ServerStream) error {
		for block := 0; ; block++ {
			var m wrapperspb.BytesValue
			if err := stream.RecvMsg(&m); err != nil {
				return err
			}
			grad := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(m.Value))), len(m.Value)/4)
			params := h.pushPull(block%(len(h.values)/placement.BlockElements), grad)
			if err := stream.SendMsg(wrapperspb.Bytes(floats.Bytes(params))); err != nil {
				return err
			}
		}
	}
	server := grpc.NewServer(grpc.InitialWindowSize(grpcWindow), grpc.InitialConnWindowSize(grpcWindow),
		grpc.ReadBufferSize(grpcBuffer), grpc.WriteBufferSize(grpcBuffer))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "bench.Parameters", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Exchange", Handler: exchange, ServerStreams: true, ClientStreams: true}},
	}, nil)
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(l)
}

// GobBlock is the message of a block over net/rpc.
type GobBlock struct {
	Index int
	Data  []float32
}

// gobParameters is what net/rpc serves.
type gobParameters struct{ *heldParameters }

// PushPull is a call.
func (g gobParameters) PushPull(in, out *GobBlock) error {
	out.Index, out.Data = in.Index, g.pushPull(in.Index, in.Data)
	return nil
}

func (h *heldParameters) serveGob(ctx context.Context, l net.Listener) error {
	server := rpc.NewServer()
	if err := server.RegisterName("Parameters", gobParameters{h}); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		nc, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go server.ServeConn(nc) // ends with the connection, at the latest with the process
	}
}
