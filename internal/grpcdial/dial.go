// Package grpcdial opens the connections of trainers to the gRPC port of a master.
//
// A connection has static windows: the requests and answers of trainers are short, and the estimation of the bandwidth of a connection
// would cost a part of the processor time of each call.
package grpcdial

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The windows of a stream and of a connection, in bytes, on both sides.
const (
	StreamWindow     = 64 << 10
	ConnectionWindow = 128 << 10
)

// Open returns a connection to addr, without TLS. It connects with the first call.
func Open(addr string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(StreamWindow),
		grpc.WithStaticConnWindowSize(ConnectionWindow),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	}, options...)...)
}
