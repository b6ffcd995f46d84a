package etcdstore

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore/fence"
)

var (
	// ErrPointerMoved means that the leader or the named set has changed since a [Pointer] was read.
	ErrPointerMoved = errors.New("the leader or the named set has changed")
	// ErrJobRuns means that a master or a parameter server of the job runs.
	ErrJobRuns = errors.New("a master or a parameter server of the job runs")
)

// Pointer is the checkpoint set that etcd names, and the leader of the job at that time.
type Pointer struct {
	Set   []byte // nil: none is named
	named int64  // mod revision
	lock  string // key of the leader's lock, absolute; "": no master runs
	term  int64  // create revision of lock
	state int64  // mod revision of the state of the tasks
}

// ReadPointer reads which set etcd names.
func (s *Store) ReadPointer(ctx context.Context) (Pointer, error) {
	queue := s.abs(LockPrefix)
	answer, err := s.readTxn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
		opGet(s.abs(keyLatest)), opGet(s.abs(keyState)),
		{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(queue), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(queue))}}},
	}})
	if err != nil {
		return Pointer{}, fmt.Errorf("read %s: %w", s.abs(keyLatest), err)
	}
	var p Pointer
	for _, kv := range answer.Responses[0].GetResponseRange().Kvs {
		p.Set, p.named = kv.Value, kv.ModRevision
	}
	for _, kv := range answer.Responses[1].GetResponseRange().Kvs {
		p.state = kv.ModRevision
	}
	for _, kv := range answer.Responses[2].GetResponseRange().Kvs {
		if p.lock == "" || kv.CreateRevision < p.term {
			p.lock, p.term = string(kv.Key), kv.CreateRevision
		}
	}
	return p, nil
}

// MovePointer names another set, if the pointer and the leader are unchanged since it was read.
func (s *Store) MovePointer(ctx context.Context, from Pointer, set []byte) error {
	lock := s.noneUnder(LockPrefix)
	if from.lock != "" {
		lock = fence.CreatedAt(from.lock, from.term)
	}
	answer, err := s.txn(ctx, &pb.TxnRequest{
		//guard:pointer-compared
		Compare: []*pb.Compare{lock, fence.ModifiedAt(s.abs(keyLatest), from.named)},
		Success: []*pb.RequestOp{opPut(s.abs(keyLatest), set, 0)},
	})
	if err == nil && !answer.Succeeded {
		err = ErrPointerMoved
	}
	if err != nil {
		return fmt.Errorf("name a set under %s: %w", s.abs(keyLatest), err)
	}
	return nil
}

// noneUnder is true while there is no key with a prefix.
func (s *Store) noneUnder(prefix string) *pb.Compare {
	absent := createdAt(s.abs(prefix), 0) // of a range: of every key in it
	absent.RangeEnd = []byte(clientv3.GetPrefixRangeEnd(s.abs(prefix)))
	return absent
}
