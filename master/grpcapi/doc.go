// Package grpcapi implements the gRPC API of a master. It translates messages into calls of package master, and errors
// into codes.
//
// The Admin service is for operators, the Coordinator service for trainers. A trainer without a session belongs to its HTTP/2 connection:
// when the connection ends, its tasks are dispatched again.
//
// In addition, the port serves the standard health service and the reflection service. The
// health service reports SERVING for "" and for each service while this master leads. With reflection, grpcurl and
// similar tools need no .proto files.
//
// # Failure behavior
//
// A table (errors.go) gives every error of the master a code and a reason for programs. A call that panics fails alone,
// with INTERNAL, and the stack is logged. Messages, headers and streams are bounded; a client that pings too often is
// disconnected. A call that reads from the master is answered within readTimeout, even if etcd does not answer.
package grpcapi
