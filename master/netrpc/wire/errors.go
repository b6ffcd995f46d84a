package wire

import (
	"errors"
	"net/rpc"
	"strings"
)

// The errors that a client tells apart. Over net/rpc an error is a text; it begins with the
// words of one of these.
var (
	ErrNotLeader    = errors.New("not the leader")
	ErrNotStored    = errors.New("not stored") // nothing was changed: repeat the request
	ErrJobFinished  = errors.New("job finished")
	ErrJobFailed    = errors.New("job failed")
	ErrRejoin       = errors.New("no session")
	ErrDrained      = errors.New("drained") // finish nothing more, leave
	ErrOtherDataset = errors.New("another dataset")
	ErrOtherFormat  = errors.New("another message format") // docs/formats/net-rpc.md has the right one

	// Of explicit commits.
	ErrRolledBack      = errors.New("rolled back") // ask which step to load
	ErrOtherGeneration = errors.New("another generation of the ring")
	ErrOtherStep       = errors.New("not the step")
	ErrMemberLost      = errors.New("a member was lost") // roll back
	ErrNotExplicit     = errors.New("this job has no explicit commits")
)

var known = []error{ErrNotLeader, ErrNotStored, ErrJobFinished, ErrJobFailed, ErrRejoin, ErrDrained, ErrOtherDataset, ErrOtherFormat, ErrRolledBack, ErrOtherGeneration, ErrOtherStep, ErrMemberLost, ErrNotExplicit}

// remote is an error of the server, with the sentinel that its text begins with.
type remote struct {
	kind error
	text rpc.ServerError
}

func (e remote) Error() string   { return string(e.text) }
func (e remote) Unwrap() []error { return []error{e.kind, e.text} }

// Refusal returns an error of the server with the text, which is kind if it is not nil.
func Refusal(kind error, text string) error {
	if kind == nil {
		return rpc.ServerError(text)
	}
	return remote{kind, rpc.ServerError(text)}
}

// Error makes errors.Is work on the error of a call. An error that is not from the server (the connection broke) is
// returned unchanged.
func Error(err error) error {
	var text rpc.ServerError
	if !errors.As(err, &text) {
		return err
	}
	for _, kind := range known {
		if strings.HasPrefix(string(text), kind.Error()) {
			return remote{kind, text}
		}
	}
	return err
}
