package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"trainmaster/master/store"
)

// ErrServerReplaced is why a context of [Roster.During] ends.
var ErrServerReplaced = errors.New("etcd names another address for this parameter server, or none")

// Roster is the registry of the parameter servers, as one watch of etcd sees it.
type Roster struct {
	store *Store

	mu      sync.Mutex
	known   bool
	now     servers
	failed  error         // etcd refuses, or a value is malformed; nil again after the next change
	changed chan struct{} // closed and replaced at each change
	during  map[*tenure]struct{}
}

// tenure is the time during which one claim of an index lasts.
type tenure struct {
	index  int
	claim  store.Server // its claim
	cancel context.CancelCauseFunc
}

// FollowServers watches the registry until ctx or the store ends.
func (s *Store) FollowServers(ctx context.Context) *Roster {
	r := &Roster{store: s, changed: make(chan struct{}), during: map[*tenure]struct{}{}}
	ctx, cancel := s.bound(ctx)
	s.spawn(func() {
		defer cancel()
		for ctx.Err() == nil {
			err := s.watchServers(ctx, func(now servers) bool {
				r.take(now)
				return true
			})
			r.fail(err)
			sleep(ctx, time.Second) //nolint:errcheck // the loop ends with ctx
		}
	})
	return r
}

func (r *Roster) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = err
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Roster) take(now servers) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.now, r.failed = true, now, nil
	for t := range r.during {
		//guard:replaced-claim-ends-calls
		if now.holder(t.index) != t.claim {
			//guard:replaced-server-announced
			t.cancel(ErrServerReplaced)
			delete(r.during, t)
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// Addrs waits until all desired indices are held and returns their addresses in order. missing (may be nil) is called with those
// that are not, when that changes; with nil while no master has stored a number.
func (r *Roster) Addrs(ctx context.Context, missing func(indices []int)) ([]string, error) {
	said := []int{-1} // nothing yet
	for {
		r.mu.Lock()
		known, now, failed, changed := r.known, r.now, r.failed, r.changed
		r.mu.Unlock()
		if failed != nil {
			return nil, fmt.Errorf("wait for the parameter servers: %w", failed)
		}
		if known {
			lacking := now.missing(now.serving())
			if now.desired >= 0 && len(lacking) == 0 {
				return now.list(now.serving()), nil
			}
			if missing != nil && !slices.Equal(said, lacking) {
				missing(lacking)
				said = lacking
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the parameter servers: %w", ctx.Err())
		}
	}
}

// During returns a context that ends with parent, with release, and as soon as addr no longer serves the index, or serves it under
// another claim: a server on another machine can have the same name. addr comes from Addrs of the same roster.
func (r *Roster) During(parent context.Context, index int, addr string) (ctx context.Context, release context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &tenure{index, r.now.holder(index), cancel}
	if t.claim.Addr != addr {
		cancel(ErrServerReplaced)
		return ctx, func() {}
	}
	r.during[t] = struct{}{}
	return ctx, func() {
		r.mu.Lock()
		delete(r.during, t)
		r.mu.Unlock()
		cancel(nil)
	}
}

// Each calls changed with the holders of all indices, now and after each change, until ctx ends. While etcd refuses there is none.
func (r *Roster) Each(ctx context.Context, changed func([]store.Server)) error {
	for {
		r.mu.Lock()
		known, now, failed, next := r.known, r.now, r.failed, r.changed
		r.mu.Unlock()
		if known && failed == nil {
			changed(now.claims)
		}
		select {
		case <-next:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

const (
	// renewServer is how often a parameter server renews its lease, if a third of the time to live is not less.
	renewServer = 300 * time.Millisecond
	// A lease is silent if two looks find no renewal within more than a second: etcd gives the time left in whole seconds.
	silentSeconds = 2
	lookAgain     = 100 * time.Millisecond
)

// Evict ends the lease of a dead parameter server, and its index with it: another server can take the index immediately. It
// affects this claim only. It returns [store.ErrRenewed], and changes nothing, if the lease was renewed within the last second: a
// dead process renews nothing. The second look is for etcd itself: after a pause it can answer before it has taken a renewal.
func (s *Store) Evict(ctx context.Context, h store.Server) error {
	for look := range 2 {
		if look > 0 {
			if err := sleep(ctx, lookAgain); err != nil {
				return fmt.Errorf("evict parameter server %d: %w", h.Index, err)
			}
		}
		answer, err := again(ctx, func() (*pb.LeaseTimeToLiveResponse, error) {
			return s.leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: h.Lease}, s.callOpts...)
		})
		switch {
		case err != nil && errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound):
			return nil
		case err != nil:
			return fmt.Errorf("read lease %x of parameter server %d: %w", h.Lease, h.Index, err)
		//guard:renewed-lease-not-evicted
		case answer.TTL > answer.GrantedTTL-silentSeconds && answer.TTL >= 0:
			return fmt.Errorf("parameter server %d at %s: %w", h.Index, h.Addr, store.ErrRenewed)
		}
	}
	_, err := again(ctx, func() (*pb.LeaseRevokeResponse, error) {
		return s.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: h.Lease}, s.callOpts...)
	})
	if err != nil && !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke lease %x of parameter server %d: %w", h.Lease, h.Index, err)
	}
	return nil
}

// Evict does the same as [Store.Evict]: with it, a roster implements [store.Servers].
func (r *Roster) Evict(ctx context.Context, h store.Server) error { return r.store.Evict(ctx, h) }

// evictPredecessor ends the claim of a dead server with the same address, until ctx ends. Usually that is an earlier start of this
// one. A server that renews its lease keeps its index: the address was given to two servers by mistake, or names another host there.
func (s *Store) evictPredecessor(ctx context.Context, h store.Server, waiting func(string)) {
	pause := backoff{least: lookAgain, most: 2 * time.Second}
	for looks := 0; ; looks++ {
		err := s.Evict(ctx, h)
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case !errors.Is(err, store.ErrRenewed):
			waiting(err.Error())
		case looks == 20:
			waiting(fmt.Sprintf("index %d is held by a living server with the same address %s: give each server its own --advertise", h.Index, h.Addr))
		}
		if looks < 20 {
			err = sleep(ctx, lookAgain)
		} else {
			err = sleep(ctx, pause.next())
		}
		if err != nil {
			return
		}
	}
}
