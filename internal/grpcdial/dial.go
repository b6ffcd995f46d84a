// Package grpcdial opens gRPC connections between the processes of a job.
package grpcdial

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The static windows of a stream and of a connection, in bytes, on both sides.
const (
	StreamWindow     = 64 << 10
	ConnectionWindow = 128 << 10
)

// Open returns a connection to addr, "host:port", without TLS, a proxy or a look-up of services. It connects with the first call.
func Open(addr string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	}, options...)...)
}

// OpenStatic is Open with static windows, for a trainer at the port of a master. Its requests and answers are short. The estimation of the
// bandwidth of a connection would cost a part of the processor time of each call.
func OpenStatic(addr string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return Open(addr, append([]grpc.DialOption{
		grpc.WithStaticStreamWindowSize(StreamWindow),
		grpc.WithStaticConnWindowSize(ConnectionWindow),
	}, options...)...)
}

// JobKey is the name of the metadata with the id of the caller's job, in hexadecimal digits.
const JobKey = "trainmaster-job"

// OfJob adds the id of a job to each call of a connection, in hexadecimal digits; "": none is known yet.
func OfJob(id func() string) grpc.DialOption { return grpc.WithPerRPCCredentials(job(id)) }

type job func() string

// GetRequestMetadata implements the interface of grpc for metadata of calls.
func (id job) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if id := id(); id != "" {
		return map[string]string{JobKey: id}, nil
	}
	return nil, nil
}

// RequireTransportSecurity returns false: the id is no secret.
func (job) RequireTransportSecurity() bool { return false }
