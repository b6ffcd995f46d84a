// Package store defines the ports through which a master reads and writes etcd, and the errors of these ports.
//
// Package etcdstore implements the ports, and so do the simulator (e2e/sim) and the in-memory store of the tests. The package has no
// code of its own: it lets package master and its adapters compile without each other.
package store

import (
	"context"
	"errors"
	"time"

	"trainmaster/ledger"
	"trainmaster/taskqueue"
)

// Store reads and writes the keys of one job.
type Store interface {
	// Lead blocks until this process holds the lock.
	Lead(ctx context.Context, c Campaign) (Leadership, error)
	// ClusterID returns the identifier of the etcd cluster.
	ClusterID(ctx context.Context) (uint64, error)
	// EnsureJob writes the immutable settings, or compares them with the stored ones. It returns [ErrOtherJob] if they differ, and
	// taskqueue.ErrDamaged if the stored settings cannot be read.
	EnsureJob(ctx context.Context, name string, settings map[string]string) error
	// Parts returns n parts of a task table from the given one on, at one revision. It returns taskqueue.ErrDamaged if a part is missing.
	Parts(ctx context.Context, reportID string, first, n int) (parts [][]byte, revision int64, err error)
	// Roster returns trainer id -> value.
	Roster(ctx context.Context) (map[string][]byte, error)
	// Prefixed returns the keys that begin with prefix, at one revision.
	Prefixed(ctx context.Context, prefix string) (values map[string][]byte, revision int64, err error)
	// Value returns the value of a key and its revision; nil and 0 if the key is absent.
	Value(ctx context.Context, key string) (value []byte, revision int64, err error)
	// PartKey returns the key of a part of a task table.
	PartKey(reportID string, i int) string

	// WatchLeader sends the holder of the first key in the queue for the lock, and again when that changes. If the receiver is slow,
	// it sends only the newest one. The channel closes when ctx ends.
	WatchLeader(ctx context.Context) <-chan Candidate
	// WatchState does the same with the stored state.
	WatchState(ctx context.Context) <-chan Version
	// TakeOver revokes the lease of the candidate if it is still first in the queue. It returns [ErrHeldDown] if the previous forced
	// takeover is too recent.
	TakeOver(ctx context.Context, c Candidate, by Takeover) error

	// Encode encodes a value of a key.
	Encode(v any) ([]byte, error)
	// Decode decodes a value. It returns an error if the value takes more than limit bytes in memory.
	Decode(b []byte, v any, limit int64) error
}

// Campaign describes one wait for the lock.
type Campaign struct {
	Address string              // where others can probe this process, also before it leads
	TTL     time.Duration       // of the lease; 0: the default of the store
	Waiting func(reason string) // receives the reason why this process does not lead yet, when it changes; may be nil
	Queued  func(lease string)  // receives the lease (hexadecimal) of each key that Lead adds to the queue for the lock; may be nil
}

// Leadership is the lock, held. Its writes are fenced. Their errors are taskqueue.ErrFenced, taskqueue.ErrUnknownOutcome, or any
// other error for "nothing was written". The sealer uses the writes of the embedded ledger.Lock.
type Leadership interface {
	ledger.Lock

	Revision() int64       // create revision of the lock: the term
	TTL() time.Duration    // of the lease, as granted
	Lost() <-chan struct{} // closes when the lock is lost
	Valid() bool           // false before the lease can have expired
	ReadState(ctx context.Context) (value []byte, modRevision int64, err error)
	Commit(ctx context.Context, expectMod int64, state []byte, writes []taskqueue.Write) (modRevision int64, err error)
	PutParts(ctx context.Context, expectMod int64, parts []taskqueue.Write, progress func(done, total int)) error
	Announce(ctx context.Context, addr string, term uint64) error
	Resign(ctx context.Context) error
}

// Candidate is a key in the queue for the lock. The first candidate leads, or is about to lead. The zero Candidate stands for an empty
// queue.
type Candidate struct {
	Key      string // absolute
	Revision int64  // create revision of the key: the term, if it leads
	Address  string // where it sends heartbeats
	Lease    string // hexadecimal
}

// Takeover describes a takeover from a candidate.
type Takeover struct {
	// Holddown is the minimum time between two forced takeovers.
	Holddown time.Duration
	// Silent is true if the leader may be alive, and only overloaded. A takeover increases the load of the next leader. After each
	// takeover of a silent leader, the next takeover of that kind therefore waits twice as long, up to a limit.
	Silent bool
	// Exempt is true if the leader never committed: a takeover needs no pause.
	Exempt bool
}

// Version is the state as stored, at one revision. The zero Version stands for no state.
type Version struct {
	State    []byte
	Revision int64 // modification
}

// Server is the index of a parameter server as registered.
type Server struct {
	Index int
	Addr  string
	Lease int64 // another one for each claim
}

// Servers is the registry of the parameter servers.
type Servers interface {
	// Each calls changed with the holders of all indices, now and after each change, until ctx ends.
	Each(ctx context.Context, changed func([]Server)) error
	// Evict ends the claim of a server, so that another process can take the index immediately. It returns [ErrRenewed], and changes
	// nothing, if the server renewed its claim within the last second.
	Evict(ctx context.Context, s Server) error
}

// Errors of the ports.
var (
	ErrOtherJob = errors.New("this master cannot join the job")
	ErrHeldDown = errors.New("a takeover was forced recently")
	ErrRenewed  = errors.New("parameter server renews its lease")
)
