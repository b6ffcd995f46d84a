// Package onetcd implements the store of a master on etcdstore. It connects the two packages, which do not import each
// other.
package onetcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/master"
	"trainmaster/taskqueue"
)

// Store is an etcdstore.Store as a master needs it.
type Store struct {
	*etcdstore.Store
	LeaseTTL time.Duration       // of the leader's lock; default 5 s
	Waiting  func(reason string) // receives the reason why this master does not lead yet; may be nil
}

var _ master.Store = Store{}

const defaultLeaseTTL = 5 * time.Second

// Campaign blocks until the lock is held.
func (s Store) Campaign(ctx context.Context, address string, queued func(lease string)) (master.Leadership, error) {
	ttl := s.LeaseTTL
	if ttl == 0 {
		ttl = defaultLeaseTTL
	}
	lock, err := s.Store.Campaign(ctx, etcdstore.CampaignConfig{Address: address, TTL: ttl, Waiting: s.Waiting, Queued: queued})
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// EnsureJob writes or compares the immutable settings of the job.
func (s Store) EnsureJob(ctx context.Context, name string, settings map[string]string) error {
	err := s.Store.EnsureJob(ctx, name, settings)
	if errors.Is(err, etcdstore.ErrOtherSettings) {
		return fmt.Errorf("%w: %w", master.ErrOtherJob, err)
	}
	return damaged(err)
}

// Parts returns the parts of a task table.
func (s Store) Parts(ctx context.Context, reportID string, n int) ([][]byte, error) {
	parts, _, err := s.Store.Parts(ctx, reportID, n)
	return parts, damaged(err)
}

// Asides returns the details of set-aside tasks.
func (s Store) Asides(ctx context.Context) (map[string][]byte, error) {
	values, _, err := s.Store.Prefixed(ctx, taskqueue.AsidePrefix)
	return values, err
}

// damaged says in the words of the cores what another term would meet again.
func damaged(err error) error {
	if errors.Is(err, etcdstore.ErrCorrupt) {
		return fmt.Errorf("%w: %w", taskqueue.ErrDamaged, err)
	}
	return err
}

// Value returns the value of a key, nil when it is absent.
func (s Store) Value(ctx context.Context, key string) ([]byte, error) {
	value, _, err := s.Store.Value(ctx, key)
	return value, err
}

// WatchLeader calls changed with the holder of the first key in the queue for the lock.
func (s Store) WatchLeader(ctx context.Context, changed func(master.Suspect)) error {
	for c := range s.Store.WatchLeader(ctx) {
		changed(master.Suspect(c))
	}
	return context.Cause(ctx)
}

// WatchState calls changed with the stored state.
func (s Store) WatchState(ctx context.Context, changed func(master.Version)) error {
	for v := range s.Store.WatchState(ctx) {
		changed(master.Version(v))
	}
	return context.Cause(ctx)
}

// Depose revokes the lease of a suspect.
func (s Store) Depose(ctx context.Context, suspect master.Suspect, by master.Takeover) error {
	err := s.Store.Depose(ctx, etcdstore.Candidate(suspect), etcdstore.Takeover(by))
	if errors.Is(err, etcdstore.ErrHeldDown) {
		return fmt.Errorf("%w: %w", master.ErrHeldDown, err)
	}
	return err
}

// PartKey is the key of a part of a task table.
func (Store) PartKey(reportID string, i int) string { return etcdstore.PartKey(reportID, i) }

// Encode encodes as everything under /task_queues is.
func (Store) Encode(v any) ([]byte, error) { return etcdstore.Encode(v) }

// Decode decodes what Encode made.
func (Store) Decode(b []byte, v any, limit int64) error { return etcdstore.Decode(b, v, limit) }

// Servers is the registry of the parameter servers as a master needs it.
type Servers struct {
	Store  *etcdstore.Store
	Roster *etcdstore.Roster
}

var _ master.ServerRegistry = Servers{}

// WatchServers calls changed with the servers that hold an index.
func (s Servers) WatchServers(ctx context.Context, changed func([]master.Server)) error {
	return s.Roster.Each(ctx, func(held []etcdstore.Held) {
		list := make([]master.Server, len(held))
		for i, h := range held {
			list[i] = master.Server{Index: h.Index, Addr: h.Addr, Claim: h.Lease}
		}
		changed(list)
	})
}

// Evict ends the lease of a server that is dead.
func (s Servers) Evict(ctx context.Context, server master.Server) (renewed bool, err error) {
	err = s.Store.Evict(ctx, etcdstore.Held{Index: server.Index, Addr: server.Addr, Lease: server.Claim})
	if errors.Is(err, etcdstore.ErrRenewed) {
		return true, nil
	}
	return false, err
}
