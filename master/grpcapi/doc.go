// Package grpcapi is the gRPC face of a master: it turns messages into calls of package
// master, and its errors into codes.
//
// Besides the service Operator the port has the standard health service, which says
// SERVING for "" and for each service while this master leads, and the reflection service,
// so that grpcurl and the like work without .proto files.
//
// # Failure behaviour
//
// One table (errors.go) gives every error of the master its code and a reason that
// programs can compare. A call that panics fails alone, with INTERNAL, and the stack is in
// the log. Messages, headers and streams are bounded; a client that pings too often is
// disconnected. A call that asks the master something is answered within readTimeout, also
// when etcd does not answer.
package grpcapi
