package committer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// Config holds the dependencies and the settings of a committer.
type Config struct {
	Store store.Store
	Clock component.Clock
	Log   *logrus.Entry

	Job           string
	Queue         taskqueue.Options
	Sync          bool // gradients are applied in synchronous steps
	AcceptCluster bool // continue with a state that another etcd cluster wrote
	NoLedger      bool // do not write the ledger
}

// Limits of the committer.
const (
	TickEvery     = 100 * time.Millisecond // interval of the queue's timeouts
	LongPoll      = 10 * time.Second       // maximum wait for a task
	CommitEvery   = 5 * time.Second        // at least, while a task is dispatched or a trainer has a session
	MaxBatchKeys  = 100                    // of 128 operations in a transaction of etcd
	MaxStateBytes = 512 << 10              // beyond it nothing new is dispatched
	commitTimeout = 5 * time.Second
)

// Errors of the committer.
var (
	ErrNotLeader     = errors.New("not the leader")
	ErrStopping      = errors.New("the master is stopping")
	ErrNotStored     = errors.New("not stored, nothing was changed: try again")
	ErrStoreWentBack = errors.New("the store went back in time")
	ErrForeign       = errors.New("the stored state is of another etcd cluster")
	// ErrCutDisturbed keeps trainers that wait for the store from being fenced as silent.
	ErrCutDisturbed = errors.New("etcd was slow or refused commits during the cut: no trainer was fenced")
)

// Fatal reports whether every further term would meet an error again.
func Fatal(err error) bool {
	for _, kind := range []error{taskqueue.ErrDamaged, taskqueue.ErrNewer, ErrForeign, ErrStoreWentBack} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// WhileHeld returns a context that ends with the lock, and with parent. release must be called.
func WhileHeld(parent context.Context, lead store.Leadership) (held context.Context, release func()) {
	held, cancel := context.WithCancelCause(parent)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-lead.Lost():
			cancel(fmt.Errorf("%w: the lock is lost", taskqueue.ErrFenced))
		case <-held.Done():
		}
	})
	return held, func() {
		cancel(nil)
		watch.Wait()
	}
}
