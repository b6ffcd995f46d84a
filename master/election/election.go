// Package election implements the election of the leader: the campaign for the lock, the heartbeats of a master, and the takeover by a
// standby when the leader is silent or dead. Package detector decides about takeovers. The fence of the store keeps the state safe if
// it is wrong.
package election

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/store"
)

// Config holds the dependencies and the settings of an election.
type Config struct {
	Store    store.Store
	Log      *logrus.Entry
	Address  string        // of this master's heartbeats
	LeaseTTL time.Duration // of the lock; 0: the default of the store
	Holddown time.Duration // minimum time between two forced takeovers
}

// Election is the part of one master in the election. Its methods may be called at any time.
type Election struct {
	config   Config
	answered atomic.Int64 // When etcd last answered, in nanoseconds since the start.
	term     atomic.Int64 // The term of this master, or 0.
	lease    atomic.Value // String. Lease of the own key in the queue for the lock.
	leader   atomic.Value // String. Address of the leader, or the next leader, of a standby.
}

// New returns an election that does nothing yet.
func New(config Config) *Election { return &Election{config: config} }

// Leader returns the address of the leader, or of the next leader; "" if it is this master or unknown.
func (e *Election) Leader() string {
	address, _ := e.leader.Load().(string)
	if address == e.config.Address {
		return ""
	}
	return address
}

// Leads sets the term of the heartbeats; 0: this master does not lead.
func (e *Election) Leads(term int64) { e.term.Store(term) }

// Campaign waits for the lock as a standby. waiting receives the reason why this master does not lead yet. follow receives the stored
// state, at most once a second.
func (e *Election) Campaign(ctx context.Context, waiting func(reason string), follow func(context.Context, store.Version) error) (store.Leadership, error) {
	s := &standby{config: e.config, own: e.ownLease, follow: follow, leads: func(address string) { e.leader.Store(address) }}
	e.queued("")
	following, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.run(following) }()
	lead, err := e.config.Store.Lead(ctx, store.Campaign{Address: e.config.Address, TTL: e.config.LeaseTTL, Waiting: waiting, Queued: e.queued})
	stop()
	e.leader.Store("")
	if failed := <-done; failed != nil && !errors.Is(failed, context.Canceled) {
		e.config.Log.WithError(failed).Warn("the standby could not follow the leader")
	}
	return lead, err
}
