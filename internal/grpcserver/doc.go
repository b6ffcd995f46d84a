// Package grpcserver implements the common parts of the gRPC servers that serve clients of a job: the bounds of a connection, the
// conversion of errors into codes, and the order of the end.
//
// # Failure behavior
//
// A [Table] gives every error a code and a reason for programs. A call that panics fails alone, with INTERNAL, and the stack is
// logged. Messages, headers and streams are bounded; a client that pings too often is disconnected. Messages of more than 64 KiB are accepted by
// some methods only. Incomplete messages share their memory, and few large messages are decoded or processed at a time. When a server stops, the
// contexts of its streams end with [ErrStopping].
package grpcserver
