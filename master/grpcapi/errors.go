package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"trainmaster/dataset"
	"trainmaster/master"
	"trainmaster/master/pscontrol"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// What this API itself finds wrong with a call.
var (
	errArgument = errors.New("bad argument") // as *argumentError
	errOtherJob = errors.New("no such job here")
	errPanic    = errors.New("internal error")
)

const errorDomain = "trainmaster"

// argumentError is a field of a request with an invalid value.
type argumentError struct{ field, text string }

func badArgument(field, format string, args ...any) error {
	return &argumentError{field, fmt.Sprintf(format, args...)}
}

func (e *argumentError) Error() string {
	return fmt.Sprintf("%v: %s: %s", errArgument, e.field, e.text)
}
func (e *argumentError) Is(target error) bool { return target == errArgument }

// table gives each error its code and the reason in its ErrorInfo. The first matching row applies. An error that means
// "ask the leader" therefore precedes the errors that it wraps.
//
// UNAVAILABLE means that a client may repeat the request to the current leader.
var table = []struct {
	is     error
	code   codes.Code
	reason string
}{
	{errArgument, codes.InvalidArgument, "BAD_ARGUMENT"},
	{errOtherJob, codes.NotFound, "OTHER_JOB"},
	{errPanic, codes.Internal, "PANIC"},

	{master.ErrStoreWentBack, codes.DataLoss, "STORE_WENT_BACK"},
	{master.ErrJobFinished, codes.FailedPrecondition, "JOB_FINISHED"},
	{master.ErrJobFailed, codes.FailedPrecondition, "JOB_FAILED"},
	{master.ErrRejoin, codes.FailedPrecondition, "REJOIN"},
	{master.ErrDrained, codes.FailedPrecondition, "DRAINED"},
	{master.ErrNotSync, codes.FailedPrecondition, "NOT_SYNC"},
	{master.ErrRolledBack, codes.FailedPrecondition, "ROLLED_BACK_TO_STEP"},
	{taskqueue.ErrNotExplicit, codes.FailedPrecondition, "NOT_EXPLICIT"},
	{taskqueue.ErrExplicit, codes.FailedPrecondition, "EXPLICIT"},
	{taskqueue.ErrOtherGeneration, codes.FailedPrecondition, "OTHER_GENERATION"},
	{taskqueue.ErrOtherStep, codes.FailedPrecondition, "OTHER_STEP"},
	{taskqueue.ErrAhead, codes.FailedPrecondition, "TRAINER_AHEAD"},
	{taskqueue.ErrNotHeld, codes.FailedPrecondition, "NOT_HELD"},
	{taskqueue.ErrMemberLost, codes.FailedPrecondition, "MEMBER_LOST"},
	{master.ErrHeldDown, codes.FailedPrecondition, "HELD_DOWN"},
	{master.ErrNotLeader, codes.Unavailable, "NOT_LEADER"},
	{master.ErrStopping, codes.Unavailable, "STOPPING"},
	{taskqueue.ErrFenced, codes.Unavailable, "NOT_LEADER"},
	{taskqueue.ErrUnknownOutcome, codes.Unavailable, "NOT_LEADER"},
	{master.ErrOtherJob, codes.FailedPrecondition, "OTHER_SETTINGS"},
	{master.ErrOtherLedger, codes.FailedPrecondition, "OTHER_LEDGER"},
	{master.ErrForeign, codes.FailedPrecondition, "FOREIGN_STATE"},
	{pscontrol.ErrCannotScale, codes.FailedPrecondition, "CANNOT_SCALE"},
	{pscontrol.ErrNoServers, codes.FailedPrecondition, "NO_PARAMETER_SERVERS"},
	{pscontrol.ErrNothingToCut, codes.FailedPrecondition, "NOTHING_TO_CUT"},
	{pscontrol.ErrServerMissing, codes.Unavailable, "SERVER_MISSING"},
	{pscontrol.ErrServerNotReady, codes.Unavailable, "SERVER_NOT_READY"},
	{pscontrol.ErrStageRoom, codes.ResourceExhausted, "NO_ROOM_FOR_STAGES"},

	{taskqueue.ErrOtherDataset, codes.AlreadyExists, "OTHER_DATASET"},
	{taskqueue.ErrBadSet, codes.InvalidArgument, "BAD_DATASET"},
	{taskqueue.ErrNotEvaluation, codes.InvalidArgument, "NOT_EVALUATION"},
	{taskqueue.ErrNotAside, codes.FailedPrecondition, "NOT_SET_ASIDE"},
	{taskqueue.ErrDropped, codes.FailedPrecondition, "DROPPED"},
	{taskqueue.ErrNoTrainer, codes.NotFound, "NO_SUCH_TRAINER"},
	{taskqueue.ErrJobOver, codes.FailedPrecondition, "JOB_OVER"},
	{taskqueue.ErrTooManyHeld, codes.ResourceExhausted, "TOO_MANY_HELD"},
	{taskqueue.ErrTooManySessions, codes.ResourceExhausted, "TOO_MANY_SESSIONS"},
	{taskqueue.ErrStoreFull, codes.ResourceExhausted, "STORE_FULL"},
	{taskqueue.ErrTooOften, codes.FailedPrecondition, "RESTORED_TOO_OFTEN"},
	{taskqueue.ErrDamaged, codes.DataLoss, "DAMAGED_STATE"},
	{taskqueue.ErrBadLedger, codes.DataLoss, "DAMAGED_LEDGER"},
	{taskqueue.ErrNewer, codes.FailedPrecondition, "NEWER_STATE"},
	{master.ErrNotStored, codes.Unavailable, "NOT_STORED"}, // why it was not may be a row above

	{dataset.ErrReplaced, codes.FailedPrecondition, "FILE_REPLACED"},
	{recordio.ErrChanged, codes.FailedPrecondition, "FILE_REPLACED"},
	{dataset.ErrNoNames, codes.InvalidArgument, "NO_FILES"},
	{dataset.ErrNoMatch, codes.InvalidArgument, "NO_FILES"},
	{dataset.ErrOutsideRoots, codes.InvalidArgument, "OUTSIDE_ROOTS"},
	{dataset.ErrScheme, codes.InvalidArgument, "UNKNOWN_SCHEME"},
	{dataset.ErrNoRecords, codes.InvalidArgument, "DAMAGED_FILE"},
	{recordio.ErrEmpty, codes.InvalidArgument, "DAMAGED_FILE"},
	{recordio.ErrTruncated, codes.InvalidArgument, "DAMAGED_FILE"},
	{recordio.ErrBadMagic, codes.InvalidArgument, "DAMAGED_FILE"},
	{recordio.ErrBadChecksum, codes.InvalidArgument, "DAMAGED_FILE"},
	{recordio.ErrBadCompressor, codes.InvalidArgument, "DAMAGED_FILE"},
	{recordio.ErrMalformed, codes.InvalidArgument, "DAMAGED_FILE"},
	{recordio.ErrTooLarge, codes.InvalidArgument, "DAMAGED_FILE"},
	{recordio.ErrNotRegular, codes.InvalidArgument, "DAMAGED_FILE"},
	{fs.ErrNotExist, codes.InvalidArgument, "NO_FILES"},
	{fs.ErrPermission, codes.InvalidArgument, "NO_PERMISSION"},

	{context.Canceled, codes.Canceled, "CANCELED"},
	{context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE_EXCEEDED"},
}

// The pauses before a repeated request, in RetryInfo. A takeover takes tens of milliseconds; a parameter server is started by a person.
const (
	retryAtLeader = 50 * time.Millisecond
	retryLater    = time.Second
)

// statusOf returns the error for a client. A status is returned unchanged; an error without a row is UNKNOWN. leader is the address of
// another master that leads; "": unknown.
func statusOf(err error, leader string) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	code, info := codes.Unknown, &errdetails.ErrorInfo{Domain: errorDomain, Reason: "UNKNOWN"}
	for _, row := range table {
		if errors.Is(err, row.is) {
			code, info.Reason = row.code, row.reason
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
