package pserver_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/dataport"
	"trainmaster/pserver/wire"
)

func oneTensor(shape ...int64) *pb.ParameterModel {
	return &pb.ParameterModel{
		Tensors:   []*pb.ParameterTensor{{Name: "w", Shape: shape}},
		Optimizer: &pb.ParameterOptimizer{Kind: "sgd", LearningRate: 1},
		Mode:      pb.UpdateMode_UPDATE_MODE_SYNC, Shards: 2,
	}
}

func TestControlRefuses(t *testing.T) {
	s := startServer(t, newBook(2), 1, pserver.Config{})
	c := control(t, s.addr)
	init := func(change func(*pb.InitParametersRequest)) func(context.Context) error {
		return func(ctx context.Context) error {
			request := &pb.InitParametersRequest{Model: oneTensor(3), Index: 1, Incarnation: 4}
			change(request)
			_, err := c.InitParameters(ctx, request)
			return err
		}
	}
	for name, try := range map[string]struct {
		call func(context.Context) error
		code codes.Code
		text string
	}{
		"another index":     {init(func(r *pb.InitParametersRequest) { r.Index = 0 }), codes.FailedPrecondition, "this is shard 1, not 0"},
		"no incarnation":    {init(func(r *pb.InitParametersRequest) { r.Incarnation = 0 }), codes.InvalidArgument, "incarnation is 0"},
		"no model":          {init(func(r *pb.InitParametersRequest) { r.Model = nil }), codes.InvalidArgument, "update mode"},
		"no tensors":        {init(func(r *pb.InitParametersRequest) { r.Model.Tensors = nil }), codes.InvalidArgument, "0 tensors"},
		"terabytes":         {init(func(r *pb.InitParametersRequest) { r.Model = oneTensor(1<<40, 1<<40) }), codes.InvalidArgument, "elements in the model"},
		"too few shards":    {init(func(r *pb.InitParametersRequest) { r.Model.Shards = 1 }), codes.InvalidArgument, "over 1 shards, this is shard 1"},
		"unknown optimizer": {init(func(r *pb.InitParametersRequest) { r.Model.Optimizer.Kind = "lion" }), codes.InvalidArgument, `optimizer "lion"`},
		"commit to an empty": {func(ctx context.Context) error {
			_, err := c.CommitStep(ctx, &pb.CommitStepRequest{Version: 1})
			return err
		}, codes.FailedPrecondition, "no parameters yet"},
		"finish of nothing": {func(ctx context.Context) error { _, err := c.FinishInit(ctx, &pb.FinishInitRequest{}); return err }, codes.Aborted, "does not hold the claim"},
	} {
		t.Run(name, func(t *testing.T) {
			err := try.call(within(t))
			if status.Code(err) != try.code || !strings.Contains(err.Error(), try.text) {
				t.Errorf("answered %v, expected %v with %q", err, try.code, try.text)
			}
		})
	}
	if reply, err := c.Describe(within(t), &pb.DescribeRequest{}); err != nil || reply.GetState() != pb.DescribeReply_STATE_EMPTY || reply.GetVersion() != 0 {
		t.Errorf("an empty shard is described as %v, %v", reply, err)
	}
	if err := init(func(*pb.InitParametersRequest) {})(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.FinishInit(within(t), &pb.FinishInitRequest{Incarnation: 4}); err != nil {
		t.Errorf("finish on a shard that holds no block of the model: %v", err)
	}
}

// F60 on the control side: a message beyond the limit is refused before it is read.
func TestControlMessagesAreBounded(t *testing.T) {
	s := startServer(t, newBook(1), 0, pserver.Config{})
	conn, err := grpc.NewClient("passthrough:///"+s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	huge := &pb.InitParametersRequest{Model: &pb.ParameterModel{Tensors: []*pb.ParameterTensor{{Name: strings.Repeat("x", 65<<20)}}}}
	if _, err := pb.NewParameterServerClient(conn).InitParameters(within(t), huge); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("65 MiB: %v, expected %v", err, codes.ResourceExhausted)
	}
}

func TestHealthAndReflection(t *testing.T) {
	s := startServer(t, newBook(1), 0, pserver.Config{})
	conn, err := grpc.NewClient("passthrough:///"+s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	health, err := healthpb.NewHealthClient(conn).Check(within(t), &healthpb.HealthCheckRequest{})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", health, err)
	}
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	reply, err := stream.Recv()
	if err != nil || !strings.Contains(reply.String(), "trainmaster.v1.ParameterServer") {
		t.Errorf("reflection: %v, %v", reply, err)
	}
}

// At the connection limit another connection is closed. After one of them ends, another
// is accepted.
func TestConnectionsAreCounted(t *testing.T) {
	addr, _ := ready(t, pserver.Config{MaxConnections: 4}) // two of them are the client's
	admitted := func(ordinal uint32) *peer {
		t.Helper()
		// The client has closed its first connection, which may still be counted.
		for deadline := time.Now().Add(30 * time.Second); ; {
			p := dial(t, addr)
			err := p.hello(ordinal, 1)
			if err == nil {
				return p
			}
			if time.Now().After(deadline) {
				t.Fatalf("hello within the limit: %v", err)
			}
		}
	}
	first, second := admitted(1), admitted(2)
	over := dial(t, addr)
	if n, err := over.nc.Read(make([]byte, 1)); n != 0 || isTimeout(err) {
		t.Errorf("one connection too many: %d bytes, %v", n, err)
	}
	first.nc.Close()
	for deadline := time.Now().Add(30 * time.Second); ; {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadFull(nc, make([]byte, 1))
		nc.Close()
		if isTimeout(err) {
			break // accepted: the server waits for the hello
		}
		if time.Now().After(deadline) {
			t.Fatal("no connection is accepted any more")
		}
	}
	head := second.head
	head.Op, head.DType, head.Block = wire.Pull, wire.Bytes, blockB1
	if _, _, err := second.ask(head, nil); err != nil {
		t.Errorf("a connection from before: %v", err)
	}
}

func TestConfigMistakesAreNamed(t *testing.T) {
	everywhere, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer everywhere.Close()
	registry := newBook(1).place(0)
	for want, cfg := range map[string]pserver.Config{
		"Registry is nil":                             {},
		"all addresses of the machine":                {Registry: registry, Listener: everywhere},
		`Advertise is "here": expected host`:          {Registry: registry, Advertise: "here"},
		"BufferBytes is 5: expected at least 1048576": {Registry: registry, Limits: dataport.Limits{BufferBytes: 5}},
		"HelloTimeout is -1":                          {Registry: registry, Limits: dataport.Limits{HelloTimeout: -1}},
		"choose a directory with write permission":    {Registry: registry, CheckpointDir: "/proc/checkpoints"},
	} {
		if _, err := pserver.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}
