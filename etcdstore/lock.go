package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"trainmaster/master/store"
)

// CampaignConfig says who campaigns and on what terms.
type CampaignConfig struct {
	// Address is where others can probe this campaigner, also before it leads.
	Address string

	// TTL is the lease's time to live, in whole seconds. etcd grants no less
	// than 2 s with its default election timeout. Default 5 s.
	TTL time.Duration

	// Margin is taken off the TTL for the difference between our clock's rate
	// and etcd's and for the time that an answer takes to compute. Default TTL/10.
	Margin time.Duration

	// Waiting (may be nil) receives the reason that this process does not lead yet, when it changes.
	Waiting func(reason string)

	// Queued (may be nil) receives the lease, in hexadecimal, of each key that Campaign puts in the queue.
	Queued func(lease string)
}

const defaultLeaseTTL = 5 * time.Second

func (c CampaignConfig) withDefaults() (CampaignConfig, error) {
	if c.TTL == 0 {
		c.TTL = defaultLeaseTTL
	}
	if c.Margin == 0 {
		c.Margin = c.TTL / 10
	}
	if c.TTL < time.Second || c.Margin < 0 || c.Margin > c.TTL/2 {
		return c, fmt.Errorf("campaign: lease TTL %v with margin %v; want at least 1s, and a margin of at most half of it", c.TTL, c.Margin)
	}
	if c.Waiting == nil {
		c.Waiting = func(string) {}
	}
	if c.Queued == nil {
		c.Queued = func(string) {}
	}
	return c, nil
}

// Lock is the leadership of a job, from Campaign's return until Lost closes.
type Lock struct {
	*leasedKey
}

// bidder is the value of a /master/lock/ key.
type bidder struct {
	Address string `json:"address"`
	Lease   string `json:"lease"`
}

var errBidLost = errors.New("our place in the queue is gone")

// Campaign queues for the lock and blocks until this process holds it. It grants the lease and queues the key immediately,
// then watches the next-lower key. If the bid is lost (etcd away for longer than the lease, the key deleted), it queues again.
// It fails when ctx or the store ends, or etcd refuses a request.
func (s *Store) Campaign(ctx context.Context, cfg CampaignConfig) (*Lock, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	pause := backoff{least: 50 * time.Millisecond, most: 2 * time.Second}
	for {
		lock, err := s.bid(ctx, cfg)
		switch {
		case err == nil:
			return lock, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("campaign for %s: %w", s.abs(LockPrefix), ctx.Err())
		//guard:campaign-retried
		case refused(err):
			return nil, fmt.Errorf("campaign for %s: %w: %w", s.abs(LockPrefix), ErrRefused, err)
		}
		next := pause.next()
		cfg.Waiting(fmt.Sprintf("%v; next try in %v", err, next.Round(time.Millisecond)))
		if err := sleep(ctx, next); err != nil {
			return nil, fmt.Errorf("campaign for %s: %w", s.abs(LockPrefix), err)
		}
	}
}

// Lead is [Store.Campaign] with the default margin. With it, the store implements [store.Store].
func (s *Store) Lead(ctx context.Context, c store.Campaign) (store.Leadership, error) {
	lock, err := s.Campaign(ctx, CampaignConfig{Address: c.Address, TTL: c.TTL, Waiting: c.Waiting, Queued: c.Queued})
	if err != nil {
		return nil, err // a nil *Lock is not a nil Leadership
	}
	return lock, nil
}

// bid makes one bid and waits with it.
func (s *Store) bid(ctx context.Context, cfg CampaignConfig) (*Lock, error) {
	h, err := s.grantLease(ctx, cfg.TTL, cfg.Margin, cfg.TTL)
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return nil, s.full("grant a lease")
	}
	if err != nil {
		return nil, err
	}
	if err := h.queue(ctx, cfg); err != nil {
		h.abandon()
		return nil, err
	}
	h.watchKey()
	return &Lock{leasedKey: h}, nil
}

func (h *leasedKey) queue(ctx context.Context, cfg CampaignConfig) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)() // a lost lease ends the waiting

	id := fmt.Sprintf("%x", h.lease)
	value, err := json.Marshal(bidder{Address: cfg.Address, Lease: id})
	if err != nil {
		return fmt.Errorf("encode the lock's value: %w", err)
	}
	cfg.Queued(id) // before another process can see the key
	ours, _, err := h.putKey(ctx, h.store.abs(LockPrefix)+id, value)
	if err != nil {
		return err
	}
	if !ours {
		return fmt.Errorf("key %s belongs to another lease", h.key)
	}
	for {
		before, err := h.lower(ctx)
		if err != nil {
			return h.orLost(err)
		}
		//guard:campaign-queue
		if before.key == "" {
			return nil
		}
		cfg.Waiting(fmt.Sprintf("standby: waiting for %s at %s", before.key, before.Address))
		err = h.store.watch(ctx, before.key, "", func(keys listing) bool { return len(keys) > 0 })
		if err != nil {
			return h.orLost(err)
		}
	}
}

func (h *leasedKey) orLost(err error) error {
	if cause := h.whyLost(); cause != nil {
		return fmt.Errorf("%w: %w", errBidLost, cause)
	}
	return err
}

// lower is the bid just before ours, or the zero value: then we lead. It checks
// in the same transaction that ours is still there.
func (h *leasedKey) lower(ctx context.Context) (before struct {
	bidder
	key string
}, err error) {
	queue := h.store.abs(LockPrefix)
	answer, err := h.store.readTxn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{createdAt(h.key, h.createRevision)},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
			Key:               []byte(queue),
			RangeEnd:          []byte(clientv3.GetPrefixRangeEnd(queue)),
			MaxCreateRevision: h.createRevision - 1,
			SortTarget:        pb.RangeRequest_CREATE,
			SortOrder:         pb.RangeRequest_DESCEND,
			Limit:             1,
		}}}},
	})
	if err != nil {
		return before, fmt.Errorf("read the queue for %s: %w", queue, err)
	}
	if !answer.Succeeded {
		return before, fmt.Errorf("%w: %s was deleted", errBidLost, h.key)
	}
	for _, kv := range answer.Responses[0].GetResponseRange().Kvs {
		before.key = string(kv.Key)
		_ = json.Unmarshal(kv.Value, &before.bidder) // only for the message
	}
	return before, nil
}

// Key is the lock's key in etcd.
func (l *Lock) Key() string { return l.key }

// Revision is the create revision of the lock's key: the fencing token.
func (l *Lock) Revision() int64 { return l.createRevision }

// TTL is the time to live of the lease, as etcd granted it.
func (l *Lock) TTL() time.Duration { return l.ttl }

// Lease is the lease that the lock, and every LeaseBound write, lives on.
func (l *Lock) Lease() clientv3.LeaseID { return clientv3.LeaseID(l.lease) }

// Lost closes when the lock is lost: the key was removed, etcd answered no keep-alive in time, or Resign was called.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Cause returns why the lock was lost, nil before that.
func (l *Lock) Cause() error { return l.whyLost() }

// Valid reports whether the lease of the lock has not expired, by the clock of this machine. It sends nothing to etcd. Before an answer
// without a commit is sent, call Valid after the answer was computed.
func (l *Lock) Valid() bool { return l.valid() }

// Resign revokes the lease of the lock: etcd removes the key and all LeaseBound keys in one step, and the next candidate leads. Lost
// closes before the request is sent.
func (l *Lock) Resign(ctx context.Context) error {
	if err := l.release(ctx); err != nil {
		return fmt.Errorf("resign %s: %w", l.key, err)
	}
	return nil
}
