package etcdstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"trainmaster/etcdstore/fence"
	"trainmaster/taskqueue"
)

// Commit replaces /task_queues and does the writes, all in one transaction that compares the lock key's create revision and,
// with expectMod, the last revision of /task_queues (0: it must not exist). It returns the new revision.
//
// Errors: [taskqueue.ErrFenced], [taskqueue.ErrUnknownOutcome] and [taskqueue.ErrStoreFull], wrapped; any other means that
// nothing was written. state must differ from every state committed before (it carries a nonce): that identifies the leader's
// own write. The arguments may be reused after the return.
func (l *Lock) Commit(ctx context.Context, expectMod int64, state []byte, writes []taskqueue.Write) (modRevision int64, err error) {
	answer, err := l.store.txn(ctx, l.term().Commit(expectMod, state, writes))
	switch {
	case err == nil && answer.Succeeded:
		return answer.Header.Revision, nil
	case err == nil || errors.Is(err, errLeaseGone):
		return 0, l.fenced(ctx, expectMod)
	case errors.Is(err, errNoSpace):
		return l.resolveOutcome(ctx, expectMod, state)
	}
	return 0, fmt.Errorf("commit %s: %w", l.store.abs(keyState), err)
}

// term returns the comparisons and keys that all transactions of this term have.
func (l *Lock) term() *fence.Term {
	return &fence.Term{Prefix: l.store.prefix, LockKey: l.key, Revision: l.createRevision, Lease: l.lease}
}

// explainTime bounds finding out which compare failed: only for the message.
const explainTime = 500 * time.Millisecond

// fenced says which compare failed, as far as can be seen afterwards.
func (l *Lock) fenced(ctx context.Context, expectMod int64) error {
	ctx, cancel := context.WithTimeout(ctx, explainTime)
	defer cancel()
	kv, err := l.readFenced(ctx, keyState)
	switch {
	case errors.Is(err, taskqueue.ErrFenced):
		return err
	case err != nil:
		return fmt.Errorf("%w: the lock %s, or the state at revision %d, is no longer what it was", taskqueue.ErrFenced, l.key, expectMod)
	}
	return fmt.Errorf("%w: %s is at revision %d, expected %d: another process, or an earlier transaction of this term, has written it",
		taskqueue.ErrFenced, l.store.abs(keyState), kv.GetModRevision(), expectMod)
}

// resolveOutcome finds the outcome after a "space exceeded" answer. etcd has answered, so the transaction has either been applied or
// not, and a read shows the outcome.
func (l *Lock) resolveOutcome(ctx context.Context, expectMod int64, state []byte) (modRevision int64, err error) {
	kv, err := l.readFenced(ctx, keyState)
	switch {
	case err != nil:
		return 0, fmt.Errorf("commit %s: %w: %w; reading it back: %w", l.store.abs(keyState), taskqueue.ErrUnknownOutcome, errNoSpace, err)
	case kv.GetModRevision() == expectMod:
		return 0, l.storeFull(l.store.abs(keyState))
	case bytes.Equal(kv.GetValue(), state):
		return kv.GetModRevision(), nil
	}
	return 0, l.fenced(ctx, expectMod)
}

func (l *Lock) storeFull(key string) error { return l.store.full("commit " + key) }

// ReadState reads /task_queues linearizably, with the lock compared in the same
// transaction: what it returns was the state while the lock was ours. Absent is
// nil, 0. While etcd is unavailable it repeats the read until ctx ends.
func (l *Lock) ReadState(ctx context.Context) (value []byte, modRevision int64, err error) {
	kv, err := l.readFenced(ctx, keyState)
	return kv.GetValue(), kv.GetModRevision(), err
}

// readFenced reads a key of the job; nil when absent.
func (l *Lock) readFenced(ctx context.Context, key string) (*mvccpb.KeyValue, error) {
	answer, err := l.store.readTxn(ctx, l.term().Read(key))
	if err != nil {
		return nil, fmt.Errorf("read %s under the lock: %w", l.store.abs(key), err)
	}
	if !answer.Succeeded {
		return nil, fmt.Errorf("%w: the lock %s (create revision %d) is gone", taskqueue.ErrFenced, l.key, l.createRevision)
	}
	if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		return kvs[0], nil
	}
	return nil, nil
}

// MaxPart is the largest value that PutParts sends. etcd takes requests of up
// to 1.5 MiB by default.
const MaxPart = 1 << 20

// PutParts writes immutable keys, one fenced transaction each, without touching /task_queues: its revision must stay
// expectMod. progress (may be nil) is called after each key. After an unknown outcome it sends the same bytes again, until ctx
// ends. One attempt waits for half of the lease's time to live, so that an attempt that hangs leaves time for another.
func (l *Lock) PutParts(ctx context.Context, expectMod int64, parts []taskqueue.Write, progress func(done, total int)) error {
	for i := range parts {
		if n := len(parts[i].Value); n > MaxPart {
			return fmt.Errorf("part %s has %d bytes, at most %d fit into one transaction; cut it smaller", l.store.abs(parts[i].Key), n, MaxPart)
		}
	}
	for i := range parts {
		if err := l.putPart(ctx, expectMod, &parts[i]); err != nil {
			return err
		}
		if progress != nil {
			progress(i+1, len(parts))
		}
	}
	return nil
}

func (l *Lock) putPart(ctx context.Context, expectMod int64, part *taskqueue.Write) error {
	key := l.store.abs(part.Key)
	pause := backoff{least: 20 * time.Millisecond, most: time.Second}
	for {
		//guard:part-write-attempt-timeout
		attempt, cancel := context.WithTimeout(ctx, l.TTL()/2)
		answer, err := l.store.txn(attempt, &pb.TxnRequest{Compare: l.term().Compares(expectMod), Success: []*pb.RequestOp{l.term().Op(part)}})
		cancel()
		switch {
		case err == nil && answer.Succeeded:
			return nil
		case err == nil || errors.Is(err, errLeaseGone):
			return l.fenced(ctx, expectMod)
		case errors.Is(err, errNoSpace):
			return l.storeFull(key) // immutable: if it is in, it may be sent again
		case !errors.Is(err, taskqueue.ErrUnknownOutcome) || sleep(ctx, pause.next()) != nil:
			return fmt.Errorf("put %s: %w", key, err)
		}
	}
}

// Announce puts addr under /master/addr, where clients look for the leader. The key is on the lease, and is put only while
// this lock is held. It compares no revision of /task_queues: the same holder may write it again at any time, and no state
// depends on it.
func (l *Lock) Announce(ctx context.Context, addr string, term uint64) error {
	value, err := json.Marshal(Addr{Addr: addr, Term: term, Lease: fmt.Sprintf("%x", l.lease)})
	if err != nil {
		return fmt.Errorf("encode %s: %w", keyAddr, err)
	}
	answer, err := l.store.txn(ctx, &pb.TxnRequest{
		//guard:announce-requires-lock
		Compare: l.term().Compares(0)[:1],
		//guard:address-bound-to-lease
		Success: []*pb.RequestOp{opPut(l.store.abs(keyAddr), value, l.lease)},
	})
	switch {
	case err == nil && answer.Succeeded:
		return nil
	case err == nil || errors.Is(err, errLeaseGone):
		return fmt.Errorf("announce %s: %w: the lock %s is gone", addr, taskqueue.ErrFenced, l.key)
	case errors.Is(err, errNoSpace):
		return l.storeFull(l.store.abs(keyAddr))
	}
	return fmt.Errorf("announce %s: %w", addr, err)
}
