package grpcapi

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/master"
	"trainmaster/master/pscontrol"
	"trainmaster/taskqueue"
)

// What this API itself finds wrong with a call.
var (
	errArgument = errors.New("bad argument")
	errOtherJob = errors.New("no such job here")
	errPanic    = errors.New("internal error")
)

const errorDomain = "trainmaster"

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

	{context.Canceled, codes.Canceled, "CANCELED"},
	{context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE_EXCEEDED"},
}

// statusOf returns the error for a client. A status is returned unchanged; an error without a row is UNKNOWN.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	code, reason := codes.Unknown, "UNKNOWN"
	for _, row := range table {
		if errors.Is(err, row.is) {
			code, reason = row.code, row.reason
			break
		}
	}
	plain := status.New(code, err.Error())
	detailed, detailErr := plain.WithDetails(&errdetails.ErrorInfo{Domain: errorDomain, Reason: reason})
	if detailErr != nil {
		return plain.Err()
	}
	return detailed.Err()
}
