package etcdstore

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"trainmaster/master/store"
)

// mostHolddowns bounds how many hold-downs a silent leader is left alone for.
const mostHolddowns = 8

// series is what /master/flapping says.
type series struct {
	takeovers int   // its value: takeovers of silent leaders, each within the time of the series
	revision  int64 // of the key; 0: there is none
	pausing   bool  // the holddown or the pause has not ended
}

// pause is the time to wait after that many takeovers of silent leaders.
func (r series) pause(holddown time.Duration) time.Duration {
	pause := holddown
	for range r.takeovers - 1 {
		if pause *= 2; pause >= mostHolddowns*holddown {
			return mostHolddowns * holddown
		}
	}
	return pause
}

// holdDown records a forced takeover of the suspect, in a transaction with two conditions: the suspect is in place, and
// no other holddown applies.
func (s *Store) holdDown(ctx context.Context, suspect store.Candidate, by store.Takeover) (err error) {
	last, err := s.lastTakeover(ctx, by)
	if err != nil {
		return err
	}
	var leases []int64
	keep := func(key string, value string, d time.Duration) (*pb.RequestOp, error) {
		seconds := int64(math.Ceil(d.Seconds()))
		granted, err := s.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds}, s.callOpts...)
		if err != nil {
			return nil, fmt.Errorf("grant the lease of %s: %w", s.abs(key), rpctypes.Error(err))
		}
		leases = append(leases, granted.ID)
		return opPut(s.abs(key), []byte(value), granted.ID), nil
	}
	defer func() {
		if err != nil {
			s.abandon(leases)
		}
	}()
	put, err := keep(keyHolddown, suspect.Address, by.Holddown)
	if err != nil {
		return err
	}
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{createdAt(suspect.Key, suspect.Revision), createdAt(s.abs(keyHolddown), 0)},
		Success: []*pb.RequestOp{put},
		Failure: []*pb.RequestOp{opGet(suspect.Key)},
	}
	if by.Silent {
		now := series{takeovers: last.takeovers + 1}
		if put, err = keep(FlappingKey, strconv.Itoa(now.takeovers), 2*now.pause(by.Holddown)); err != nil {
			return err
		}
		req.Compare = append(req.Compare, modifiedAt(s.abs(FlappingKey), last.revision))
		req.Success = append(req.Success, put)
	}
	switch answer, err := s.txn(ctx, req); {
	case err != nil:
		return fmt.Errorf("hold down further takeovers: %w", err)
	case answer.Succeeded:
		return nil
	case len(answer.Responses[0].GetResponseRange().Kvs) > 0:
		return store.ErrHeldDown // by an earlier takeover
	}
	return fmt.Errorf("%s is gone already", suspect.Key)
}

// lastTakeover returns store.ErrHeldDown while a holddown applies.
func (s *Store) lastTakeover(ctx context.Context, by store.Takeover) (series, error) {
	answer, err := s.readTxn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{opGet(s.abs(keyHolddown)), opGet(s.abs(FlappingKey))}})
	if err != nil {
		return series{}, fmt.Errorf("read %s: %w", s.abs(keyHolddown), rpctypes.Error(err))
	}
	if len(answer.Responses[0].GetResponseRange().Kvs) > 0 {
		return series{}, store.ErrHeldDown
	}
	flapping := answer.Responses[1].GetResponseRange().Kvs
	if len(flapping) == 0 || !by.Silent {
		return series{}, nil
	}
	last, err := s.series(ctx, flapping[0])
	if err == nil && last.pausing {
		err = store.ErrHeldDown
	}
	return last, err
}

func (s *Store) series(ctx context.Context, kv *mvccpb.KeyValue) (series, error) {
	lease, err := s.client.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
	if err != nil {
		return series{}, fmt.Errorf("read the lease of %s: %w", kv.Key, err)
	}
	// etcd says the rest in whole seconds, rounded down.
	takeovers, err := strconv.Atoi(string(kv.Value))
	if err != nil {
		takeovers = 1 // the value was edited
	}
	return series{takeovers: takeovers, revision: kv.ModRevision, pausing: 2*(lease.TTL+1) > lease.GrantedTTL}, nil
}

// abandon revokes unused leases. A lease that it does not reach expires.
func (s *Store) abandon(leases []int64) {
	ctx, cancel := context.WithTimeout(s.ctx, abandonTime)
	defer cancel()
	for _, id := range leases {
		_, _ = s.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id}, s.callOpts...)
	}
}
