package taskqueue

import "errors"

// Write is one key of a commit besides the state itself. Key is relative to the
// job's prefix and begins with a slash.
type Write struct {
	Key        string
	Value      []byte
	Delete     bool
	LeaseBound bool // goes when the leader's lease goes
}

// How a commit can end other than well. A store wraps these; every other error
// means that nothing was written and the same leader may go on.
var (
	// ErrFenced says that the lock or the stored state is no longer what the
	// leader believed: its term is over.
	ErrFenced = errors.New("not the leader")

	// ErrUnknownOutcome says that the write may or may not have happened. It is
	// never assumed to have failed: read back, or end the term.
	ErrUnknownOutcome = errors.New("outcome unknown")

	// ErrStoreFull says that the store refuses to grow; nothing was written.
	ErrStoreFull = errors.New("the store is full")
)
