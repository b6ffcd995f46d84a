// Package component defines the parts of a master that run for the length of a term, and their view of the term.
//
// A component submits events to the task queue, reads the committed state and receives effects of commits. It never sees the committer,
// the lock or another component. Components run concurrently with the committer: an error or a panic of one of them ends the term.
package component

import (
	"context"
	"time"

	"trainmaster/ledger"
	"trainmaster/taskqueue"
)

// Component is a part of a master that acts while the master leads.
type Component interface {
	// Name returns the name for logs.
	Name() string
	// Init is called once, when the master starts. An error ends the master.
	Init(ctx context.Context) error
	// Prepare is called in each term before the address of the leader is announced. The component subscribes to effects here. It must
	// not submit events, because the committer does not run yet. An error or a panic ends the term.
	// ctx ends with the lock and after the time to live of its lease.
	Prepare(ctx context.Context, t Term) error
	// Run runs until ctx ends. An error or a panic ends the term. Memory that outlives the term must not depend on it: no lock that the
	// next term needs stays locked after a panic.
	Run(ctx context.Context, t Term) error
}

// Term is one leadership, as components use it.
type Term interface {
	// Number returns the number of the term: the create revision of the lock.
	Number() int64
	// JobID returns the random id of the job.
	JobID() [16]byte
	// Clock returns the clock of the term.
	Clock() Clock
	// Submit applies an event and returns its answer after the commit.
	Submit(ctx context.Context, ev taskqueue.Event) (taskqueue.Answer, error)
	// Wait does the same, but an answer that waits for other trainers is held back for up to 10 s.
	Wait(ctx context.Context, ev taskqueue.Event) (taskqueue.Answer, error)
	// Read calls look with the committed queue. look must not change it.
	Read(ctx context.Context, look func(*taskqueue.Queue)) error
	// Roster returns the stored values of the trainers by id. Only a function that Read calls may use it.
	Roster() map[string][]byte
	// Evaluation returns the stored value of taskqueue.EvaluationKey. Only a function that Read calls may use it.
	Evaluation() []byte
	// Effects returns a mailbox for effects of the given kinds, which has the outstanding ones already. Only Prepare may call it.
	Effects(kinds ...taskqueue.EffectKind) *Mailbox
	// Post publishes an effect that is not one of the queue.
	Post(e taskqueue.Effect)
	// Progress returns the number of the last commit, and the bytes of ledger entries in this term.
	Progress() ledger.Progress
	// Lock returns the fenced writes of the sealer.
	Lock() ledger.Lock
}

// Clock is the clock of a term. Now must never go back.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration)
	// Wait returns when wake has a token, which it takes, when ctx ends, or after d. It has no time limit if d is negative.
	Wait(ctx context.Context, wake <-chan struct{}, d time.Duration)
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// MachineClock is the monotonic clock of the machine.
type MachineClock struct{}

// Now returns the time.
func (MachineClock) Now() time.Time { return time.Now() }

// Sleep returns after d, or when ctx ends.
func (MachineClock) Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Wait implements [Clock].
func (MachineClock) Wait(ctx context.Context, wake <-chan struct{}, d time.Duration) {
	var late <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-ctx.Done():
	case <-wake:
	case <-late:
	}
}

// WithTimeout is context.WithTimeout.
func (MachineClock) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}
