package master

import (
	"context"
	"time"

	"trainmaster/taskqueue"
)

// Store is what a master needs of etcd.
type Store interface {
	// Campaign blocks until this master leads. Others can probe address meanwhile. Campaign calls queued with the lease
	// (hexadecimal) of each key that it adds to the lock queue.
	Campaign(ctx context.Context, address string, queued func(lease string)) (Leadership, error)
	ClusterID(ctx context.Context) (uint64, error)
	// EnsureJob writes the immutable settings, or compares them with the stored ones.
	EnsureJob(ctx context.Context, name string, settings map[string]string) error
	// Parts returns the parts of a task table, at one revision.
	Parts(ctx context.Context, reportID string, n int) ([][]byte, error)
	// Roster returns trainer id -> value.
	Roster(ctx context.Context) (map[string][]byte, error)
	// Asides returns key -> details of why tasks are set aside.
	Asides(ctx context.Context) (map[string][]byte, error)
	// Value returns the value of a key, nil when it is absent.
	Value(ctx context.Context, key string) ([]byte, error)
	PartKey(reportID string, i int) string

	// WatchLeader calls changed with the holder of the first key in the queue for the lock,
	// and again when that changes, until ctx ends.
	WatchLeader(ctx context.Context, changed func(Suspect)) error
	// WatchState does the same with the stored state; of several it may skip all but the last.
	WatchState(ctx context.Context, changed func(Version)) error
	// Depose revokes the lease of the suspect if it is still first in the queue. It returns ErrHeldDown if the previous
	// forced takeover is too recent.
	Depose(ctx context.Context, suspect Suspect, by Takeover) error

	Encode(v any) ([]byte, error)
	Decode(b []byte, v any, limit int64) error
}

// Leadership is the lock, held. Its writes are fenced; their errors are
// taskqueue.ErrFenced, ErrUnknownOutcome, or any other for "nothing was written".
type Leadership interface {
	Revision() int64
	TTL() time.Duration // of the lease, as granted
	Lost() <-chan struct{}
	Valid() bool
	ReadState(ctx context.Context) (value []byte, modRevision int64, err error)
	Commit(ctx context.Context, expectMod int64, state []byte, writes []taskqueue.Write) (modRevision int64, err error)
	PutParts(ctx context.Context, expectMod int64, parts []taskqueue.Write, progress func(done, total int)) error
	Announce(ctx context.Context, addr string, term uint64) error
	Resign(ctx context.Context) error
}

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
