package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"trainmaster/dataset"
	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
	"trainmaster/trainer"
	"trainmaster/trainer/agent/arena"
	"trainmaster/trainer/params"
	"trainmaster/trainer/rendezvous"
)

// failure is the error of a reply.
type failure struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// errInvalid is a request of the wrong form.
var errInvalid = errors.New("invalid request")

func invalidf(format string, args ...any) error {
	return &invalidError{fmt.Sprintf(format, args...)}
}

type invalidError struct{ text string }

func (e *invalidError) Error() string        { return e.text }
func (e *invalidError) Is(target error) bool { return target == errInvalid }

// resourceError is a lack of memory or descriptors on this machine. No task is to blame.
type resourceError struct{ error }

func (e *resourceError) Unwrap() error { return e.error }

// errTimeout is the cause of the end of a request after its wait.
var errTimeout = errors.New("no result within the time that the request waits")

// kinds has the kinds of errors; the first that matches counts.
var kinds = []struct {
	is   error
	kind string
}{
	{errTimeout, "timeout"},
	{io.EOF, "over"},
	{trainer.ErrJobFailed, "failed"},
	{trainer.ErrCommitFirst, "commit_first"},
	{trainer.ErrRollbackFirst, "rollback_first"},
	{trainer.ErrRolledBack, "rolled_back"},
	{trainer.ErrSessionLost, "session_lost"},
	{trainer.ErrDrained, "drained"},
	{params.ErrRolledBack, "rolled_back"},
	{params.ErrNoSet, "rolled_back"}, // it is initialized again
	{params.ErrFenced, "session_lost"},
	{trainer.ErrNotExplicit, "invalid"},
	{trainer.ErrOtherDataset, "invalid"},
	{trainer.ErrOtherJob, "invalid"},
	{trainer.ErrFiles, "invalid"},
	{trainer.ErrDamaged, "damaged"},
	{errInvalid, "invalid"},
	{rendezvous.ErrClosed, "closed"},
	{rendezvous.ErrReplaced, "session_lost"},
	{rendezvous.ErrOldGeneration, "old_generation"},
	{rendezvous.ErrRefused, "invalid"},
	{rendezvous.ErrValue, "invalid"},
	{dataset.ErrScheme, "invalid"},
	{fs.ErrNotExist, "not_found"},
	{fs.ErrPermission, "not_found"},
	{dataset.ErrReplaced, "damaged"},
	{recordio.ErrChanged, "damaged"},
}

// failureOf returns the error of a reply.
func failureOf(err error) *failure {
	f := &failure{Kind: "other", Text: err.Error()}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			f.Kind = k.kind
			return f
		}
	}
	_, isInvalid := errors.AsType[*arena.InvalidError](err)
	_, isNotFinite := errors.AsType[*params.NotFiniteError](err)
	if isInvalid || isNotFinite {
		f.Kind = "invalid"
	}
	_, inFile := errors.AsType[*recordio.Error](err)
	_, inTFRecord := errors.AsType[*tfrecord.Error](err)
	if inFile || inTFRecord {
		f.Kind = "damaged"
	}
	if _, ok := errors.AsType[*resourceError](err); ok { // it has the place in the file, too
		f.Kind = "resources"
	}
	return f
}

// limited returns a context that ends after wait seconds, with errTimeout as its cause; nil: no limit.
func limited(ctx context.Context, wait *float64) (context.Context, context.CancelFunc) {
	if wait == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, seconds(*wait), errTimeout)
}
