package sim

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/etcdstore/fence"
	"trainmaster/master"
	"trainmaster/record"
	"trainmaster/taskqueue"
)

// Histories with a sealer: the leader moves the ledger into sealed files, values of the modelled
// etcd, by the production code (record.Driven), while all other faults happen.

// seal seals for as long as a term lasts.
func (n *node) seal(d *master.Driven, k *lock) {
	n.beside(func(p *process) {
		l := &link{process: p, etcd: n.world.etcd, world: n.world, cut: &n.cut, heard: &n.heard, idle: func() {}}
		ledger := &ledger{link: l, term: k.term}
		sealer := &record.Sealer{Store: ledger, Config: n.world.plan.sealing, Log: n.world.log}
		id := d.JobID()
		sealing := sealer.Drive(ledger, hex.EncodeToString(id[:]))
		for n.driven == d {
			pause, err := sealing.Round(context.Background(), record.Progress(d.Recorded()))
			if err != nil {
				n.note("%s: seals no more: %v", n.name, err)
				if !errors.Is(err, taskqueue.ErrFenced) {
					n.breaks("only the end of a term ends its sealing", "%s: %v", n.name, err)
				}
				return
			}
			p.sleep(pause)
		}
	})
}

// ledger is record.Store and record.Lock over the modelled etcd, as etcdstore has them.
type ledger struct {
	link *link
	term fence.Term
}

func (l *ledger) Record(_ context.Context, first, last uint64, limit int) (entries []record.Entry, head []byte, revision int64, err error) {
	_, err = l.link.read(func() answer {
		entries, head, revision = l.link.etcd.record(first, last, limit)
		return answer{}
	})
	return entries, head, revision, err
}

func (l *ledger) Value(_ context.Context, key string) (value []byte, revision int64, err error) {
	_, err = l.link.read(func() answer {
		kv := l.link.etcd.keys[key]
		value, revision = kv.GetValue(), kv.GetModRevision()
		return answer{}
	})
	return value, revision, err
}

func (l *ledger) Keys(_ context.Context, prefix string) (keys []string, err error) {
	_, err = l.link.read(func() answer { keys = l.link.etcd.list(prefix); return answer{} })
	return keys, err
}

func (l *ledger) PutFenced(_ context.Context, key string, value []byte) error {
	_, err := l.fenced(nil, fence.Put(key, bytes.Clone(value), 0))
	return err
}

func (l *ledger) ReplaceFenced(_ context.Context, key string, expect int64, value []byte) (int64, error) {
	return l.fenced(fence.ModifiedAt(key, expect), fence.Put(key, bytes.Clone(value), 0))
}

func (l *ledger) DeleteFenced(_ context.Context, keys ...string) error {
	for _, key := range keys {
		if _, err := l.fenced(nil, fence.Delete(key)); err != nil {
			return err
		}
	}
	return nil
}

func (l *ledger) DeleteRecord(_ context.Context, first, last uint64) error {
	_, err := l.fenced(nil, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{
		Key: []byte(taskqueue.RecordKey(first)), RangeEnd: []byte(taskqueue.RecordKey(last) + "\x00"),
	}}})
	return err
}

func (l *ledger) fenced(also *pb.Compare, op *pb.RequestOp) (int64, error) {
	req := &pb.TxnRequest{Compare: l.term.Compares(0)[:1], Success: []*pb.RequestOp{op}}
	if also != nil {
		req.Compare = append(req.Compare, also)
	}
	a, err := l.link.txn(req)
	if err == nil && !a.ok {
		held := false
		_, err = l.link.read(func() answer {
			held = l.link.etcd.keys[l.term.LockKey].GetCreateRevision() == l.term.Revision
			return answer{}
		})
		switch {
		case err == nil && held:
			err = errors.New("written meanwhile")
		case err == nil:
			err = taskqueue.ErrFenced
		}
	}
	if err != nil {
		return 0, fmt.Errorf("write under the lock: %w", err)
	}
	return a.revision, nil
}

// record returns what is in etcd of the ledger, and the head.
func (e *etcd) record(first, last uint64, limit int) (entries []record.Entry, head []byte, revision int64) {
	for commit := first; commit <= last && len(entries) < limit; commit++ {
		if kv := e.keys[taskqueue.RecordKey(commit)]; kv != nil {
			entries = append(entries, record.Entry{Commit: commit, Events: kv.Value})
		}
	}
	kv := e.keys[record.HeadKey]
	return entries, kv.GetValue(), kv.GetModRevision()
}

// atOnce is record.Store as one looks at etcd without a network.
type atOnce struct{ *etcd }

func (e atOnce) Record(_ context.Context, first, last uint64, limit int) ([]record.Entry, []byte, int64, error) {
	entries, head, revision := e.record(first, last, limit)
	return entries, head, revision, nil
}

func (e atOnce) Value(_ context.Context, key string) ([]byte, int64, error) {
	return e.keys[key].GetValue(), e.keys[key].GetModRevision(), nil
}

func (e atOnce) Keys(_ context.Context, prefix string) ([]string, error) { return e.list(prefix), nil }

// ledger: each commit is in the ledger once, with its events, in files or not, in whatever step
// of sealing a leader died.
func (c *check) ledger() {
	if c.world.plan.sealing.Every == 0 {
		return
	}
	var head record.Head
	if value := c.world.etcd.keys[record.HeadKey].GetValue(); value != nil {
		if err := json.Unmarshal(value, &head); err != nil {
			c.breaks("the ledger can be read", "head: %v", err)
		}
	}
	reader, err := record.Open(c.ctx, atOnce{c.world.etcd}, "", "")
	if err != nil {
		c.breaks("the ledger can be read", "%v", err)
		return
	}
	next := max(head.From, 1)
	for e, err := range reader.Entries(c.ctx, c.state.Commit) {
		if err != nil {
			c.breaks("the ledger can be read", "commit %d: %v", next, err)
			return
		}
		for ; next < e.Commit && len(c.recorded[next]) == 0; next++ {
		}
		if e.Commit != next || !bytes.Equal(e.Events, c.recorded[e.Commit]) {
			c.breaks("each commit is in the ledger once", "commit %d follows, expected %d, %d bytes of events, expected %d", e.Commit, next, len(e.Events), len(c.recorded[e.Commit]))
			return
		}
		next++
	}
	for ; next <= c.state.Commit && len(c.recorded[next]) == 0; next++ {
	}
	if next <= c.state.Commit {
		c.breaks("each commit is in the ledger once", "it ends before commit %d of %d", next, c.state.Commit)
	}
	c.sealed = max(c.sealed, head.Through)
}
