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

// Errors of a commit. A store wraps these. Every other error means that nothing was written and the same leader may continue.
var (
	// ErrFenced reports that the lock or the stored state has changed since the leader last saw it: its term has ended.
	ErrFenced = errors.New("not the leader")

	// ErrUnknownOutcome says that the write may or may not have happened. It is
	// never assumed to have failed: read back, or end the term.
	ErrUnknownOutcome = errors.New("outcome unknown")

	// ErrStoreFull says that the store refuses to grow; nothing was written.
	ErrStoreFull = errors.New("the store is full")
)
