package grpcapi

import (
	"errors"
	"slices"

	"google.golang.org/grpc/codes"

	"trainmaster/dataset/onwire"
	"trainmaster/internal/grpcserver"
	"trainmaster/master"
	"trainmaster/master/evaluation"
	"trainmaster/master/pscontrol"
	"trainmaster/master/rendezvous"
	"trainmaster/master/ring"
	"trainmaster/taskqueue"
)

// errOtherJob is a call about a job that this master does not serve.
var errOtherJob = errors.New("no such job here")

// badArgument is an error about a field of a request.
var badArgument = grpcserver.BadArgument

// table gives each error its code and the reason in its ErrorInfo.
var table = slices.Concat(grpcserver.Table{
	{Is: master.ErrInvalid, Code: codes.InvalidArgument, Reason: "BAD_ARGUMENT"},
	{Is: errOtherJob, Code: codes.NotFound, Reason: "OTHER_JOB"},

	{Is: master.ErrStoreWentBack, Code: codes.DataLoss, Reason: "STORE_WENT_BACK"},
	{Is: master.ErrJobFinished, Code: codes.FailedPrecondition, Reason: "JOB_FINISHED"},
	{Is: master.ErrJobFailed, Code: codes.FailedPrecondition, Reason: "JOB_FAILED"},
	{Is: master.ErrRejoin, Code: codes.FailedPrecondition, Reason: "REJOIN"},
	{Is: master.ErrDrained, Code: codes.FailedPrecondition, Reason: "DRAINED"},
	{Is: master.ErrNotSync, Code: codes.FailedPrecondition, Reason: "NOT_SYNC"},
	{Is: master.ErrRolledBack, Code: codes.FailedPrecondition, Reason: "ROLLED_BACK_TO_STEP"},
	{Is: taskqueue.ErrNotExplicit, Code: codes.FailedPrecondition, Reason: "NOT_EXPLICIT"},
	{Is: taskqueue.ErrExplicit, Code: codes.FailedPrecondition, Reason: "EXPLICIT"},
	{Is: taskqueue.ErrOtherGeneration, Code: codes.FailedPrecondition, Reason: "OTHER_GENERATION"},
	{Is: taskqueue.ErrOtherStep, Code: codes.FailedPrecondition, Reason: "OTHER_STEP"},
	{Is: taskqueue.ErrAhead, Code: codes.FailedPrecondition, Reason: "TRAINER_AHEAD"},
	{Is: taskqueue.ErrNotHeld, Code: codes.FailedPrecondition, Reason: "NOT_HELD"},
	{Is: taskqueue.ErrMemberLost, Code: codes.FailedPrecondition, Reason: "MEMBER_LOST"},
	{Is: master.ErrHeldDown, Code: codes.FailedPrecondition, Reason: "HELD_DOWN"},
	//guard:not-leader-is-unavailable
	{Is: master.ErrNotLeader, Code: codes.Unavailable, Reason: "NOT_LEADER"},
	{Is: master.ErrStopping, Code: codes.Unavailable, Reason: "STOPPING"},
	{Is: taskqueue.ErrFenced, Code: codes.Unavailable, Reason: "NOT_LEADER"},
	{Is: taskqueue.ErrUnknownOutcome, Code: codes.Unavailable, Reason: "NOT_LEADER"},
	{Is: master.ErrOtherJob, Code: codes.FailedPrecondition, Reason: "OTHER_SETTINGS"},
	{Is: master.ErrOtherLedger, Code: codes.FailedPrecondition, Reason: "OTHER_LEDGER"},
	{Is: master.ErrForeign, Code: codes.FailedPrecondition, Reason: "FOREIGN_STATE"},
	{Is: pscontrol.ErrCannotScale, Code: codes.FailedPrecondition, Reason: "CANNOT_SCALE"},
	{Is: pscontrol.ErrNoServers, Code: codes.FailedPrecondition, Reason: "NO_PARAMETER_SERVERS"},
	{Is: pscontrol.ErrNothingToCut, Code: codes.FailedPrecondition, Reason: "NOTHING_TO_CUT"},
	{Is: pscontrol.ErrServerMissing, Code: codes.Unavailable, Reason: "SERVER_MISSING"},
	{Is: pscontrol.ErrServerNotReady, Code: codes.Unavailable, Reason: "SERVER_NOT_READY"},
	{Is: pscontrol.ErrStageRoom, Code: codes.ResourceExhausted, Reason: "NO_ROOM_FOR_STAGES"},

	{Is: taskqueue.ErrOtherDataset, Code: codes.AlreadyExists, Reason: "OTHER_DATASET"},
	{Is: taskqueue.ErrBadSet, Code: codes.InvalidArgument, Reason: "BAD_DATASET"},
	{Is: taskqueue.ErrNoSet, Code: codes.NotFound, Reason: "NO_SUCH_DATASET"},
	{Is: taskqueue.ErrNotOnline, Code: codes.FailedPrecondition, Reason: "NOT_ONLINE"},
	{Is: taskqueue.ErrSetClosed, Code: codes.FailedPrecondition, Reason: "DATASET_CLOSED"},
	{Is: taskqueue.ErrEmptySet, Code: codes.FailedPrecondition, Reason: "EMPTY_DATASET"},
	{Is: taskqueue.ErrOtherSegment, Code: codes.Aborted, Reason: "OTHER_SEGMENT"},
	{Is: taskqueue.ErrNotEvaluation, Code: codes.InvalidArgument, Reason: "NOT_EVALUATION"},
	{Is: taskqueue.ErrBadSetting, Code: codes.InvalidArgument, Reason: "BAD_SETTING"},
	{Is: taskqueue.ErrTooManyRates, Code: codes.ResourceExhausted, Reason: "TOO_MANY_LEARNING_RATES"},
	{Is: master.ErrNoTasks, Code: codes.FailedPrecondition, Reason: "NO_TASKS"},
	{Is: master.ErrNoRing, Code: codes.FailedPrecondition, Reason: "NO_RING"},
	{Is: ring.ErrBad, Code: codes.InvalidArgument, Reason: "BAD_ARGUMENT"},
	{Is: ring.ErrClosed, Code: codes.FailedPrecondition, Reason: "RING_CLOSED"},
	{Is: ring.ErrUnknown, Code: codes.FailedPrecondition, Reason: "NOT_A_MEMBER"},
	{Is: ring.ErrReplaced, Code: codes.FailedPrecondition, Reason: "REPLACED"},
	{Is: ring.ErrOld, Code: codes.FailedPrecondition, Reason: "OLD_GENERATION"},
	{Is: rendezvous.ErrBadValue, Code: codes.InvalidArgument, Reason: "BAD_VALUE"},
	{Is: rendezvous.ErrTooManyValues, Code: codes.ResourceExhausted, Reason: "TOO_MANY_VALUES"},
	{Is: ring.ErrFull, Code: codes.ResourceExhausted, Reason: "TOO_MANY_MEMBERS"},
	{Is: master.ErrPodLimits, Code: codes.OutOfRange, Reason: "POD_LIMITS"},
	{Is: master.ErrNoPods, Code: codes.FailedPrecondition, Reason: "NO_PODS"},
	{Is: master.ErrNoEvaluation, Code: codes.FailedPrecondition, Reason: "NOT_EVALUATED"},
	{Is: taskqueue.ErrBadMetrics, Code: codes.InvalidArgument, Reason: "BAD_METRICS"},
	{Is: evaluation.ErrNotRegistered, Code: codes.FailedPrecondition, Reason: "EVALUATION_NOT_REGISTERED"},
	{Is: evaluation.ErrRequested, Code: codes.FailedPrecondition, Reason: "ROUND_REQUESTED"},
	{Is: taskqueue.ErrSharedModel, Code: codes.FailedPrecondition, Reason: "SHARED_MODEL"},
	{Is: taskqueue.ErrOwnModels, Code: codes.FailedPrecondition, Reason: "OWN_MODELS"},
	{Is: taskqueue.ErrRoundOpen, Code: codes.FailedPrecondition, Reason: "ROUND_OPEN"},
	{Is: taskqueue.ErrNotAside, Code: codes.FailedPrecondition, Reason: "NOT_SET_ASIDE"},
	{Is: taskqueue.ErrDropped, Code: codes.FailedPrecondition, Reason: "DROPPED"},
	{Is: taskqueue.ErrNoTrainer, Code: codes.NotFound, Reason: "NO_SUCH_TRAINER"},
	{Is: taskqueue.ErrNoCommands, Code: codes.FailedPrecondition, Reason: "NO_COMMANDS"},
	{Is: taskqueue.ErrJobOver, Code: codes.FailedPrecondition, Reason: "JOB_OVER"},
	{Is: taskqueue.ErrTooManyHeld, Code: codes.ResourceExhausted, Reason: "TOO_MANY_HELD"},
	{Is: taskqueue.ErrTooManySessions, Code: codes.ResourceExhausted, Reason: "TOO_MANY_SESSIONS"},
	{Is: taskqueue.ErrStoreFull, Code: codes.ResourceExhausted, Reason: "STORE_FULL"},
	{Is: taskqueue.ErrTooOften, Code: codes.FailedPrecondition, Reason: "RESTORED_TOO_OFTEN"},
	{Is: taskqueue.ErrDamaged, Code: codes.DataLoss, Reason: "DAMAGED_STATE"},
	{Is: taskqueue.ErrBadLedger, Code: codes.DataLoss, Reason: "DAMAGED_LEDGER"},
	{Is: taskqueue.ErrNewer, Code: codes.FailedPrecondition, Reason: "NEWER_STATE"},
	{Is: master.ErrNotStored, Code: codes.Unavailable, Reason: "NOT_STORED"}, // why it was not may be a row above
}, onwire.Table, grpcserver.Common)
