package grpcserver

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
)

// Contain returns the options of a server in which a call that panics fails alone. A [Server] has them.
func Contain(log *logrus.Entry) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
			defer recovered(log, info.FullMethod, &err)
			return handler(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
			defer recovered(log, info.FullMethod, &err)
			return handler(srv, stream)
		}),
	}
}

// unary translates what a call returns, and keeps a panic from the others.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	defer recovered(s.Log, info.FullMethod, &err)
	reply, err = handler(ctx, req)
	return reply, s.Table.Status(err, s.Leader())
}

// stream does the same for a stream, whose context ends when the server stops.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer recovered(s.Log, info.FullMethod, &err)
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(context.Cause(s.stopping)) })()
	return s.Table.Status(handler(srv, stoppable{stream, ctx, s}), s.Leader())
}

type stoppable struct {
	grpc.ServerStream
	ctx    context.Context
	server *Server
}

func (s stoppable) Context() context.Context { return s.ctx }

// recovered turns a panic into the error of the one call that it happened in.
func recovered(log *logrus.Entry, method string, err *error) {
	if r := recover(); r != nil {
		//guard:panic-of-a-call-logged
		log.WithField("method", method).WithField("panic", r).WithField("stack", string(debug.Stack())).Error("a call was dropped")
		*err = Common.Status(fmt.Errorf("%w: %v; nothing was changed, the stack is in the server's log", ErrPanic, r), "")
	}
}
