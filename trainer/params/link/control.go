package link

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"trainmaster/internal/grpcdial"
	pb "trainmaster/proto/trainmaster/v1"
)

// maxControlMessage bounds the placement table in a server's reply.
const maxControlMessage = 64 << 20

// Call finds the server of the shard and calls its control port once. The call ends when the address no longer serves
// the shard. The error names the shard.
func Call[Q, R any](ctx context.Context, l *Link, method func(pb.ParameterServerClient, context.Context, Q, ...grpc.CallOption) (R, error), request Q) (reply R, err error) {
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
	bound, release := l.bound(ctx)
	defer release()
	if reply, err = method(control, bound, request); err == nil {
		return reply, nil
	}
	if l.replaced() {
		err = status.Error(codes.Unavailable, context.Cause(l.serves).Error())
	}
	if ctx.Err() != nil {
		return reply, context.Cause(ctx)
	}
	if status.Code(err) == codes.OutOfRange {
		return reply, fmt.Errorf("%w: parameter server %d: %w", ErrRolledBack, l.Index, err)
	}
	if Again(err) {
		l.lost(err)
		l.drop()
	}
	return reply, fmt.Errorf("parameter server %d: %w", l.Index, err)
}

// Describe asks the server for its state and placement.
func (l *Link) Describe(ctx context.Context) (*pb.DescribeReply, error) {
	return Call(ctx, l, pb.ParameterServerClient.Describe, &pb.DescribeRequest{})
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
		control, err := grpcdial.Open(l.addr,
			grpcdial.OfJob(func() string { return l.cfg.Stream.JobID }),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: l.cfg.Stream.Timeout}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxControlMessage), grpc.MaxCallSendMsgSize(maxControlMessage)))
		if err != nil {
			return nil, fmt.Errorf("parameter server %d at %q: %w", l.Index, l.addr, err)
		}
		l.control, l.dialed = control, l.addr
	}
	return pb.NewParameterServerClient(l.control), nil
}
