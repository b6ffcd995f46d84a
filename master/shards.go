package master

import (
	"context"

	"trainmaster/taskqueue"
)

// Shards are the parameter servers.
type Shards interface {
	// Begin fixes a cut on every shard. number chooses the number of the cut from the greatest number that any shard
	// has seen. Begin returns [ErrNothingToCut] if there is nothing to save.
	Begin(ctx context.Context, term uint64, epoch uint32, number func(last uint64) uint64) (Cut, error)
	// CommitStep returns when every shard has received the step, or when ctx ends. reached is the greatest version of
	// any shard. A step without contributors is a step whose contributors are unknown. A step of version 0 only queries
	// the version.
	CommitStep(ctx context.Context, step taskqueue.Step) (reached uint64, err error)
	// SetAt decodes the cut of a set.
	SetAt(set []byte) (SetAt, error)
	// Discard removes what was written for sets that are newer than the latest one, nil if there is none yet: they were
	// never finished.
	Discard(ctx context.Context, term uint64, latest []byte) error
	// Version returns the greatest version of any shard, or ErrNothingToCut if not every shard is registered.
	Version(ctx context.Context) (uint64, error)
}

// SetAt describes the cut of a set.
type SetAt struct {
	Number   uint64
	Version  uint64    // of the parameters, in synchronous mode
	Position *Position // nil: it does not say
}
