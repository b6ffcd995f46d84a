package grpcserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Errors of a call, in addition to the errors of the package that serves it.
var (
	ErrArgument = errors.New("bad argument") // as BadArgument returns it
	ErrPanic    = errors.New("internal error")
	ErrStopping = errors.New("the server is stopping")
)

// ErrorDomain is the domain in the ErrorInfo of every error.
const ErrorDomain = "trainmaster"

// argumentError is a field of a request with an invalid value.
type argumentError struct{ field, text string }

// BadArgument returns an error about a field of a request. It wraps ErrArgument.
func BadArgument(field, format string, args ...any) error {
	return &argumentError{field, fmt.Sprintf(format, args...)}
}

func (e *argumentError) Error() string {
	return fmt.Sprintf("%v: %s: %s", ErrArgument, e.field, e.text)
}
func (e *argumentError) Is(target error) bool { return target == ErrArgument }

// Row gives an error its code and the reason in its ErrorInfo.
type Row struct {
	Is     error
	Code   codes.Code
	Reason string
}

// Table has the errors of a server. The first matching row applies. An error that means "ask the leader" therefore precedes the
// errors that it wraps.
//
// UNAVAILABLE means that a client may repeat the request, to the current leader if there is one.
type Table []Row

// Common has the errors of all servers.
var Common = Table{
	{Is: ErrArgument, Code: codes.InvalidArgument, Reason: "BAD_ARGUMENT"},
	{Is: ErrPanic, Code: codes.Internal, Reason: "PANIC"},
	{Is: ErrTooLarge, Code: codes.ResourceExhausted, Reason: "TOO_LARGE"},
	{Is: ErrBusy, Code: codes.ResourceExhausted, Reason: "TOO_MANY_LARGE_MESSAGES"},
	{Is: ErrStopping, Code: codes.Unavailable, Reason: "STOPPING"},
	{Is: context.Canceled, Code: codes.Canceled, Reason: "CANCELED"},
	{Is: context.DeadlineExceeded, Code: codes.DeadlineExceeded, Reason: "DEADLINE_EXCEEDED"},
}

// The pauses before a repeated request, in RetryInfo. A takeover takes tens of milliseconds; a parameter server is started by a person.
const (
	retryAtLeader = 50 * time.Millisecond
	retryLater    = time.Second
)

// Status returns the error for a client. A status is returned unchanged; an error without a row is UNKNOWN. leader is the address of
// another master that leads; "": unknown.
func (t Table) Status(err error, leader string) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	code, info := codes.Unknown, &errdetails.ErrorInfo{Domain: ErrorDomain, Reason: "UNKNOWN"}
	for _, row := range t {
		if errors.Is(err, row.Is) {
			code, info.Reason = row.Code, row.Reason
			break
		}
	}
	details := []protoadapt.MessageV1{info}
	if code == codes.Unavailable {
		pause := retryLater
		if info.Reason == "NOT_LEADER" || info.Reason == "STOPPING" {
			pause = retryAtLeader
			//guard:refusal-names-leader
			if leader != "" {
				info.Metadata = map[string]string{"leader": leader}
			}
		}
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(pause)})
	}
	var bad *argumentError
	if errors.As(err, &bad) {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: bad.field, Description: bad.text}}})
	}
	plain := status.New(code, err.Error())
	detailed, detailErr := plain.WithDetails(details...)
	if detailErr != nil {
		return plain.Err()
	}
	return detailed.Err()
}

// Reason returns the reason in the ErrorInfo of an error that a server has sent; "": there is none.
func Reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == ErrorDomain {
			return info.Reason
		}
	}
	return ""
}
