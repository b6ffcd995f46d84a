package proxy

import (
	"errors"
	"slices"

	"google.golang.org/grpc/codes"

	"trainmaster/dataset/onwire"
	"trainmaster/internal/grpcserver"
)

// Errors of streams and readers, in addition to the errors of packages dataset and recordio.
var (
	ErrStreamGone     = errors.New("no such stream")
	ErrTooManyStreams = errors.New("too many streams")
	ErrTooManyReaders = errors.New("too many readers")
	ErrStalled        = errors.New("the client accepted no batch")
	ErrTooLarge       = errors.New("too large for the data proxy")
	ErrFewerRecords   = errors.New("the file has fewer records")
)

// Table gives each error its code and reason.
var Table = slices.Concat(grpcserver.Table{
	{Is: ErrStreamGone, Code: codes.NotFound, Reason: "STREAM_GONE"},
	{Is: ErrTooManyStreams, Code: codes.ResourceExhausted, Reason: "TOO_MANY_STREAMS"},
	{Is: ErrTooManyReaders, Code: codes.ResourceExhausted, Reason: "TOO_MANY_READERS"},
	{Is: ErrStalled, Code: codes.Unavailable, Reason: "STALLED"},
	{Is: ErrTooLarge, Code: codes.ResourceExhausted, Reason: "TOO_LARGE"},
	{Is: ErrFewerRecords, Code: codes.InvalidArgument, Reason: "FEWER_RECORDS"},
}, onwire.Table, grpcserver.Common)
