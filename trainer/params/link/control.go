package link

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
)

// maxControlMessage bounds the placement table in a server's reply.
const maxControlMessage = 64 << 20

// Call finds the server of the shard and calls its control port once. The error names the shard.
func Call[R any](ctx context.Context, l *Link, call func(context.Context, pb.ParameterServerClient) (R, error)) (reply R, err error) {
	if l.replaced() {
		l.drop()
	}
	if err := l.find(ctx); err != nil {
		return reply, err
	}
	control, err := l.controlClient()
	if err != nil {
		return reply, err
	}
	reply, err = callAt(ctx, l, control, call)
	if err == nil {
		return reply, nil
	}
	if ctx.Err() != nil {
		return reply, context.Cause(ctx)
	}
	if status.Code(err) == codes.OutOfRange {
		return reply, fmt.Errorf("%w: parameter server %d: %w", ErrRewound, l.Index, err)
	}
	if Again(err) {
		l.lost(err)
		l.drop()
	}
	return reply, fmt.Errorf("parameter server %d: %w", l.Index, err)
}

// callAt makes a call that ends when the address no longer serves the shard. The error then permits another attempt.
func callAt[R any](ctx context.Context, l *Link, control pb.ParameterServerClient, call func(context.Context, pb.ParameterServerClient) (R, error)) (R, error) {
	ctx, release := l.bound(ctx)
	defer release()
	reply, err := call(ctx, control)
	if err != nil && l.replaced() {
		err = status.Error(codes.Unavailable, context.Cause(l.serves).Error())
	}
	return reply, err
}

// FinishInit marks the shard as complete. It calls the server that took the parameters, never one that was found since.
func (l *Link) FinishInit(ctx context.Context) error {
	control, err := l.controlClient()
	if err != nil {
		return err
	}
	_, err = callAt(ctx, l, control, func(ctx context.Context, control pb.ParameterServerClient) (*pb.FinishInitReply, error) {
		return control.FinishInit(ctx, &pb.FinishInitRequest{Incarnation: l.cfg.Stream.Incarnation})
	})
	return err
}

// Describe asks the server for its state and placement.
func (l *Link) Describe(ctx context.Context) (*pb.DescribeReply, error) {
	return Call(ctx, l, func(ctx context.Context, control pb.ParameterServerClient) (*pb.DescribeReply, error) {
		return control.Describe(ctx, &pb.DescribeRequest{})
	})
}

// Placement asks the server for its placement; nil if the server cannot be asked.
func (l *Link) Placement(ctx context.Context) *pb.ParameterPlacement {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Stream.Timeout)
	defer cancel()
	reply, err := l.Describe(ctx)
	if err != nil {
		l.drop()
	}
	return reply.GetPlacement()
}

// controlClient is the gRPC side of the server at l.addr.
func (l *Link) controlClient() (pb.ParameterServerClient, error) {
	if l.control == nil || l.dialed != l.addr {
		if l.control != nil {
			l.control.Close()
		}
		control, err := grpc.NewClient("passthrough:///"+l.addr,
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: l.cfg.Stream.Timeout}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxControlMessage), grpc.MaxCallSendMsgSize(maxControlMessage)))
		if err != nil {
			return nil, fmt.Errorf("parameter server %d at %q: %w", l.Index, l.addr, err)
		}
		l.control, l.dialed = control, l.addr
	}
	return pb.NewParameterServerClient(l.control), nil
}
