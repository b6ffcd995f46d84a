package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// leasedKey is a lease, kept alive, and the one key that this process put on it. It is lost, once and permanently, when etcd
// reports that the lease or the key is gone, when no keep-alive was answered in time, or on release.
//
// Its goroutines end with the loss; release and abandon wait for them.
type leasedKey struct {
	store  *Store
	lease  int64
	ttl    time.Duration // as granted; etcd raises what is too short for it
	margin time.Duration
	every  time.Duration // between two keep-alives

	key            string // absolute
	createRevision int64

	// trusted is the boot time until which etcd has promised the lease, less
	// the margin; math.MinInt64 once lost. Written under mu.
	trusted atomic.Int64

	lost chan struct{}
	ctx  context.Context // ends with the loss
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex
	cause error // why it was lost; guarded by mu
}

var errReleased = errors.New("released")

// grantLease grants a lease and keeps it alive, each third of its time to live and at least as often as every.
func (s *Store) grantLease(ctx context.Context, ttl, margin, every time.Duration) (*leasedKey, error) {
	sent := bootTime()
	seconds := int64(math.Ceil(ttl.Seconds()))
	answer, err := s.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds}, s.callOpts...)
	if err != nil && staleToken(err) {
		sent = bootTime()
		answer, err = s.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds}, s.callOpts...)
	}
	if err != nil {
		return nil, fmt.Errorf("grant a lease of %ds: %w", seconds, rpctypes.Error(err))
	}
	h := &leasedKey{
		store:  s,
		lease:  answer.ID,
		ttl:    time.Duration(answer.TTL) * time.Second,
		margin: margin,
		every:  min(every, time.Duration(answer.TTL)*time.Second/3),
		lost:   make(chan struct{}),
	}
	h.ctx, h.stop = context.WithCancel(s.ctx)
	h.trusted.Store(int64(sent + h.ttl - margin))
	h.spawn(h.keepAlive)
	h.spawn(h.expire)
	return h, nil
}

func (h *leasedKey) spawn(f func()) {
	h.wg.Add(1)
	h.store.spawn(func() {
		defer h.wg.Done()
		f()
	})
}

// putKey puts the key on the lease unless another process holds it. It may be repeated after an unknown outcome. owner is the
// value of the other holder's key.
func (h *leasedKey) putKey(ctx context.Context, key string, value []byte) (ours bool, owner []byte, err error) {
	answer, err := h.store.txn(ctx, &pb.TxnRequest{
		//guard:claim-requires-free-key
		Compare: []*pb.Compare{createdAt(key, 0)},
		Success: []*pb.RequestOp{opPut(key, value, h.lease)},
		Failure: []*pb.RequestOp{opGet(key)},
	})
	if err != nil {
		return false, nil, fmt.Errorf("put %s: %w", key, err)
	}
	h.key = key
	if answer.Succeeded {
		h.createRevision = answer.Header.Revision
		return true, nil, nil
	}
	found := answer.Responses[0].GetResponseRange().Kvs[0]
	h.createRevision = found.CreateRevision
	return found.Lease == h.lease, found.Value, nil
}

// watchKey watches the key: the loss of the key is the loss of the lease.
func (h *leasedKey) watchKey() {
	h.spawn(func() {
		err := h.store.watch(h.ctx, h.key, "", func(keys listing) bool {
			kv, there := keys[h.key]
			return there && kv.CreateRevision == h.createRevision
		})
		if err == nil {
			err = fmt.Errorf("expected key %s in etcd, found none: its lease ended, or the key was deleted", h.key)
		}
		h.lose(err)
	})
}

// keepAlive renews the lease until it is lost.
func (h *leasedKey) keepAlive() {
	pause := backoff{least: 50 * time.Millisecond, most: h.ttl / 6}
	for h.ctx.Err() == nil {
		err := h.keepAliveStream()
		//guard:keepalive-retried
		if errors.Is(err, rpctypes.ErrLeaseNotFound) || refused(err) {
			h.lose(fmt.Errorf("lease %x: %w", h.lease, err))
			return
		}
		_ = sleep(h.ctx, pause.next()) // the loop sees the end
	}
}

// keepAliveStream renews over one stream until an answer fails to come.
func (h *leasedKey) keepAliveStream() error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(h.ctx))
	defer cancel()
	patience := time.AfterFunc(h.ttl/3, cancel)
	defer patience.Stop()
	stream, err := h.store.leases.LeaseKeepAlive(ctx, h.store.callOpts...)
	if err != nil {
		return rpctypes.Error(err)
	}
	for {
		sent := bootTime()
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: h.lease}); err != nil {
			_, err = stream.Recv() // Send only says EOF; the reason is here
			return rpctypes.Error(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			return rpctypes.Error(err)
		}
		if answer.TTL <= 0 {
			return rpctypes.ErrLeaseNotFound
		}
		//guard:lease-margin
		h.trust(sent + time.Duration(answer.TTL)*time.Second - h.margin)
		patience.Reset(h.every + h.ttl/3) // the pause, and the next answer
		if err := sleep(ctx, h.every); err != nil {
			return err
		}
	}
}

func (h *leasedKey) trust(until time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause == nil {
		h.trusted.Store(int64(until))
	}
}

// expireCheck is the maximum delay of noticing a loss after the machine resumes from a suspension: Go's timers stop during the
// suspension, the boot clock does not.
const expireCheck = 100 * time.Millisecond

// expire declares the loss when the trust has run out.
func (h *leasedKey) expire() {
	for {
		left := time.Duration(h.trusted.Load()) - bootTime()
		if left <= 0 {
			h.lose(fmt.Errorf("lease %x: no keep-alive was answered in time (time to live %v, margin %v)", h.lease, h.ttl, h.margin))
			return
		}
		if sleep(h.ctx, min(left, expireCheck)) != nil {
			h.lose(errors.New("the store was closed")) // unless there was a cause before
			return
		}
	}
}

func (h *leasedKey) lose(cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause != nil {
		return
	}
	h.cause = cause
	h.trusted.Store(math.MinInt64)
	close(h.lost)
	h.stop()
}

func (h *leasedKey) valid() bool { return int64(bootTime()) < h.trusted.Load() }

// whyLost is nil while it is not lost.
func (h *leasedKey) whyLost() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause
}

// release stops believing, then revokes the lease; with it go all keys on it,
// in one step. Already gone is success.
func (h *leasedKey) release(ctx context.Context) error {
	h.lose(errReleased)
	h.wg.Wait()
	_, err := again(ctx, func() (*pb.LeaseRevokeResponse, error) {
		return h.store.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: h.lease}, h.store.callOpts...)
	})
	if err != nil && !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke lease %x: %w; it expires in %v at most", h.lease, err, h.ttl)
	}
	return nil
}

// abandonTime limits the release of unused leases.
const abandonTime = time.Second

// abandon releases a lease that is not used.
func (h *leasedKey) abandon() {
	ctx, cancel := context.WithTimeout(h.store.ctx, abandonTime)
	defer cancel()
	_ = h.release(ctx) // if not, the lease runs out
}
