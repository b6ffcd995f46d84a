package link

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/pserver/wire"
)

// StaleError is returned for a gradient that was staged too late: the shards are at Version.
type StaleError struct {
	Version uint64
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("gradient is stale: parameters are at version %d; pull them and compute it again", e.Version)
}

// The errors of a call that another attempt cannot help.
var (
	// ErrUninitialized is returned if a server holds no parameters.
	ErrUninitialized = errors.New("parameter server has no parameters: call Init first: a restarted server must have the same --checkpoint-dir")

	// ErrNoSet is an [ErrUninitialized] of a server that was restarted before the first checkpoint set of the job. No server has
	// applied a push, so another initialization loses nothing.
	ErrNoSet error = noSet{}

	// ErrFenced is returned to an incarnation of a trainer that has a successor or whose session has ended.
	ErrFenced = errors.New("incarnation of the trainer is fenced: a newer incarnation exists or its session was lost: join again")

	// ErrServerFailed is returned if a server fails on each repetition of a request.
	ErrServerFailed = errors.New("parameter server failed on the request")

	// ErrRolledBack is returned if a server is at a later epoch of the job.
	ErrRolledBack = errors.New("job rolled back to its last checkpoint: join again")
)

type noSet struct{}

func (noSet) Error() string {
	return "parameter server has no parameters, and the job has no checkpoint set yet: join again and call Init"
}
func (noSet) Is(target error) bool { return target == ErrUninitialized }

// ErrMoved is returned if the client has an old placement.
var ErrMoved = errors.New("blocks were moved")

// ShardsError is returned if the registry has fewer servers than the placement has shards. Either the client has an old placement, or
// the job started with another number of servers.
type ShardsError struct{ Found, Expected int }

func (e *ShardsError) Error() string {
	return fmt.Sprintf("found %d parameter servers: the model is spread over %d", e.Found, e.Expected)
}

// IsLayoutStale reports whether a later placement may help.
func IsLayoutStale(err error) bool {
	var lacking *ShardsError
	return errors.Is(err, ErrMoved) || errors.As(err, &lacking)
}

// Again reports whether an error of the initialization means a lost claim or a lost server.
func Again(err error) bool {
	var fault *wire.Fault
	if errors.As(err, &fault) {
		return fault.Code == wire.NotClaimed || fault.Code == wire.OtherModel
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.FailedPrecondition:
		return true
	}
	return errors.Is(err, ErrUninitialized) || errors.Is(err, ErrMoved)
}
