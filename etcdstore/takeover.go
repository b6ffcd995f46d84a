package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// WatchLeader sends the holder of the first key of the queue for the lock: the leader, or the next leader. It lists again
// after compaction.
func (s *Store) WatchLeader(ctx context.Context) <-chan store.Candidate {
	queue := s.abs(LockPrefix)
	return latest(ctx, s, func(ctx context.Context, emit func(store.Candidate)) error {
		var last store.Candidate
		first := true
		return s.watch(ctx, queue, clientv3.GetPrefixRangeEnd(queue), func(keys listing) bool {
			if c := firstOf(keys); first || c != last {
				first, last = false, c
				emit(c)
			}
			return true
		})
	})
}

func firstOf(keys listing) store.Candidate {
	var first store.Candidate
	for key, kv := range keys {
		if first.Key != "" && kv.CreateRevision >= first.Revision {
			continue
		}
		var b bidder
		_ = json.Unmarshal(kv.Value, &b) // a damaged one has no address, and is not probed
		first = store.Candidate{Key: key, Revision: kv.CreateRevision, Address: b.Address, Lease: b.Lease}
	}
	return first
}

// WatchState sends each new /task_queues, or only the newest of several.
func (s *Store) WatchState(ctx context.Context) <-chan store.Version {
	key := s.abs(keyState)
	return latest(ctx, s, func(ctx context.Context, emit func(store.Version)) error {
		return s.watch(ctx, key, "", func(keys listing) bool {
			var v store.Version
			if kv := keys[key]; kv != nil {
				v = store.Version{State: kv.Value, Revision: kv.ModRevision}
			}
			emit(v)
			return true
		})
	})
}

// TakeOver revokes the lease of a suspect, if it is still the first in the queue for the lock. The fence holds: a live suspect
// just loses its term. Of several concurrent forced takeovers, one succeeds. The others, and takeovers during the holddown,
// return [store.ErrHeldDown].
func (s *Store) TakeOver(ctx context.Context, suspect store.Candidate, by store.Takeover) error {
	if suspect.Key == "" {
		return errors.New("takeover: expected a candidate, found none")
	}
	lease, err := strconv.ParseInt(suspect.Lease, 16, 64)
	if err != nil {
		return fmt.Errorf("takeover from %s: expected a lease in hexadecimal, found %q", suspect.Key, suspect.Lease)
	}
	//guard:takeover-holddown
	if !by.Exempt {
		if err := s.holdDown(ctx, suspect, by); err != nil {
			return err
		}
	}
	_, err = again(ctx, func() (*pb.LeaseRevokeResponse, error) {
		return s.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: lease}, s.callOpts...)
	})
	if err != nil && !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("revoke lease %x of %s: %w", lease, suspect.Key, err)
	}
	return nil
}

// Check asks etcd whether the lock is still ours: what a leader does that has
// nothing to commit, to know how old its knowledge is.
func (l *Lock) Check(ctx context.Context) error {
	answer, err := l.store.readTxn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{createdAt(l.key, l.createRevision)},
		Success: []*pb.RequestOp{opGet(l.key)}, // without any read the comparison would be a local one
	})
	switch {
	case err != nil:
		return fmt.Errorf("check %s: %w", l.key, err)
	case !answer.Succeeded:
		return fmt.Errorf("check %s: %w: the key is gone", l.key, taskqueue.ErrFenced)
	}
	return nil
}
