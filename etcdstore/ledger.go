package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore/fence"
	"trainmaster/ledger"
	"trainmaster/taskqueue"
)

var (
	_ ledger.Store = (*Store)(nil)
	_ ledger.Lock  = (*Lock)(nil)
)

// ledgerSpan is the range of keys of commits first to last.
func (s *Store) ledgerSpan(first, last uint64) (from, end []byte) {
	return []byte(s.abs(taskqueue.LedgerKey(first))), []byte(s.abs(taskqueue.LedgerKey(last)) + "\x00")
}

// LedgerEntries returns what stands of the ledger from commit first to last, at most limit entries
// in their order, and the value of ledger.HeadKey with its revision, all of one revision.
func (s *Store) LedgerEntries(ctx context.Context, first, last uint64, limit int) (entries []ledger.Entry, head []byte, headRevision int64, err error) {
	from, end := s.ledgerSpan(first, last)
	answer, err := s.readTxn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: from, RangeEnd: end, Limit: int64(limit)}}},
		opGet(s.abs(ledger.HeadKey)),
	}})
	if err != nil {
		return nil, nil, 0, fmt.Errorf("read %s: %w", from, err)
	}
	for _, kv := range answer.Responses[0].GetResponseRange().Kvs {
		name := strings.TrimPrefix(string(kv.Key), s.abs(taskqueue.LedgerPrefix))
		commit, err := strconv.ParseUint(name, 16, 64)
		if err != nil {
			return nil, nil, 0, fmt.Errorf("%s: expected the number of a commit as 16 hexadecimal digits: %w", kv.Key, err)
		}
		entries = append(entries, ledger.Entry{Commit: commit, Events: kv.Value})
	}
	for _, kv := range answer.Responses[1].GetResponseRange().Kvs {
		head, headRevision = kv.Value, kv.ModRevision
	}
	return entries, head, headRevision, nil
}

// Keys returns the keys of the job that begin with prefix, without their values.
func (s *Store) Keys(ctx context.Context, prefix string) ([]string, error) {
	answer, err := s.get(ctx, s.abs(prefix), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", s.abs(prefix), err)
	}
	keys := make([]string, len(answer.Kvs))
	for i, kv := range answer.Kvs {
		keys[i] = strings.TrimPrefix(string(kv.Key), s.prefix)
	}
	return keys, nil
}

// PutFenced writes a key while the lock is held.
func (l *Lock) PutFenced(ctx context.Context, key string, value []byte) error {
	_, err := l.fencedTxn(ctx, key, nil, opPut(l.store.abs(key), value, 0))
	return err
}

// ReplaceFenced writes a key that was not written since expectRevision (0: it is absent), while the lock is held, and returns
// its new revision.
func (l *Lock) ReplaceFenced(ctx context.Context, key string, expectRevision int64, value []byte) (revision int64, err error) {
	return l.fencedTxn(ctx, key, fence.ModifiedAt(l.store.abs(key), expectRevision), opPut(l.store.abs(key), value, 0))
}

// DeleteFenced deletes keys while the lock is held.
func (l *Lock) DeleteFenced(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if _, err := l.fencedTxn(ctx, key, nil, fence.Delete(l.store.abs(key))); err != nil {
			return err
		}
	}
	return nil
}

// DeleteLedgerEntries deletes what stands of the ledger from commit first to last, while the lock is
// held.
func (l *Lock) DeleteLedgerEntries(ctx context.Context, first, last uint64) error {
	from, end := l.store.ledgerSpan(first, last)
	_, err := l.fencedTxn(ctx, taskqueue.LedgerKey(first), nil, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: from, RangeEnd: end},
	}})
	return err
}

// fencedTxn does one operation while the lock is held and, unless nil, also is true. It touches no key that commits touch, and
// so compares no revision of /task_queues. If also is false the error is no taskqueue.ErrFenced: the term continues.
func (l *Lock) fencedTxn(ctx context.Context, key string, also *pb.Compare, op *pb.RequestOp) (revision int64, err error) {
	req := &pb.TxnRequest{Compare: l.term().Compares(0)[:1], Success: []*pb.RequestOp{op}}
	if also != nil {
		req.Compare = append(req.Compare, also)
	}
	answer, err := l.store.txn(ctx, req)
	switch {
	case err == nil && answer.Succeeded:
		return answer.Header.Revision, nil
	case err == nil && also != nil:
		var kv *mvccpb.KeyValue
		if kv, err = l.readFenced(ctx, key); err == nil {
			err = fmt.Errorf("%s: expected no other write, found revision %d", l.store.abs(key), kv.GetModRevision())
		}
	case err == nil:
		err = fmt.Errorf("%w: the lock %s is gone", taskqueue.ErrFenced, l.key)
	case errors.Is(err, errNoSpace):
		err = l.storeFull(l.store.abs(key))
	}
	return 0, fmt.Errorf("write %s under the lock: %w", l.store.abs(key), err)
}
