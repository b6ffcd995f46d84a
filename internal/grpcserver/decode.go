package grpcserver

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"

	"trainmaster/internal/largemsg"
)

// Errors of requests that are refused before they are decoded: a list of small messages takes fifty times its size in memory.
var (
	ErrTooLarge = errors.New("message too large")
	ErrBusy     = errors.New("too many large messages at a time")
)

// Large says how a method takes messages of more than largemsg.MaxShort bytes, up to MaxMessage. Other methods refuse them.
type Large int

// Kinds of methods with large messages. A result waits for its place, unless 64 MiB of results wait. A report is refused if there is no place. Both
// keep their place until they are answered.
const (
	LargeReport Large = 1 + iota
	LargeResult
)

// RegisterService implements [grpc.ServiceRegistrar].
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	bounded := *desc
	bounded.Methods = slices.Clone(desc.Methods)
	for i, m := range desc.Methods {
		large := s.Large["/"+desc.ServiceName+"/"+m.MethodName]
		bounded.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			in := request{server: s, ctx: ctx, large: large}
			defer in.end()
			return m.Handler(srv, ctx, func(v any) error {
				in.v = v
				return in.result(decode(&in))
			}, interceptor)
		}
	}
	s.Server.RegisterService(&bounded, impl)
}

// Admitted is a message to receive from a stream, which waits until it is admitted.
type Admitted struct {
	Message any
	Admit   func(bytes int) error // called before the message is decoded
}

// RecvMsg receives a message of a stream.
func (s stoppable) RecvMsg(v any) error {
	in := request{server: s.server, ctx: s.ctx, v: v}
	return in.result(s.ServerStream.RecvMsg(&in))
}

// request is a message that is received.
type request struct {
	server *Server
	ctx    context.Context
	large  Large // of its method
	v      any

	refusal error
	give    func() // gives its place back; nil: it has none
}

// result returns the error for the client, if the codec has refused the message.
func (r *request) result(err error) error {
	if r.refusal != nil {
		return r.server.Table.Status(r.refusal, "")
	}
	return err
}

func (r *request) end() {
	if r.give != nil {
		r.give()
	}
}

// admit takes a place for a message of n bytes.
func (r *request) admit(n int) error {
	large := r.server.large
	switch {
	case n <= largemsg.MaxShort:
	//guard:grpc-short-messages
	case r.large == 0:
		return fmt.Errorf("%w: expected at most %d bytes, found %d", ErrTooLarge, largemsg.MaxShort, n)
	case r.large == LargeResult:
		if !large.TakeResult(n) {
			//guard:grpc-waiting-results
			return fmt.Errorf("%w: repeat the request", ErrBusy)
		}
		r.give = func() { large.GiveResult(n) }
		select {
		//guard:grpc-large-results
		case large.Results <- struct{}{}:
			r.give = func() { <-large.Results; large.GiveResult(n) }
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	default:
		host := ""
		if p, ok := peer.FromContext(r.ctx); ok {
			host = largemsg.HostOf(p.Addr)
		}
		if !large.TakeReport(host) {
			//guard:grpc-large-reports
			return fmt.Errorf("%w: repeat the request", ErrBusy)
		}
		r.give = func() { large.GiveReport(host) }
	}
	return nil
}

// unzip decompresses few messages at a time: a message of 4 KiB can have 4 MiB then.
type unzip struct{ places chan struct{} }

func (u unzip) Type() string { return "gzip" }

// Do reads at most one byte more than the server accepts.
func (u unzip) Do(compressed io.Reader) ([]byte, error) {
	u.places <- struct{}{}
	defer func() { <-u.places }()
	r, err := gzip.NewReader(compressed)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, MaxMessage+1))
}

// codec admits requests before it decodes them.
type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*request)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if r.refusal = r.admit(data.Len()); r.refusal != nil {
		return nil // gRPC would send another code. The receiver of the request finds the refusal
	}
	into := r.v
	if a, ok := into.(*Admitted); ok {
		if r.refusal = a.Admit(data.Len()); r.refusal != nil {
			return nil
		}
		into = a.Message
	}
	return c.CodecV2.Unmarshal(data, into)
}
