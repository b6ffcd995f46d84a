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
	"trainmaster/ledger"
	"trainmaster/master/committer"
	"trainmaster/taskqueue"
)

// Histories with a sealer. The leader moves the ledger into sealed files with the production code
// (ledger.Sealing). The files are values of the modelled etcd.

// seal runs the sealer of a term until the term ends.
func (n *node) seal(d *committer.Committer, k *lock) {
	n.beside(func(p *process) {
		l := &link{process: p, etcd: n.world.etcd, world: n.world, cut: &n.cut, heard: &n.heard, idle: func() {}}
		store := &ledgerLink{link: l, term: k.term}
		sealer := &ledger.Sealer{Store: store, Config: n.world.plan.sealing, Log: n.world.log}
		id := d.JobID()
		sealing := sealer.Begin(store, hex.EncodeToString(id[:]))
		for n.driven == d {
			pause, err := sealing.Round(context.Background(), d.Progress())
			if err != nil {
				n.note("%s: sealer stopped: %v", n.name, err)
				if !errors.Is(err, taskqueue.ErrFenced) {
					n.breaks("only the end of a term ends its sealer", "%s: %v", n.name, err)
				}
				return
			}
			p.sleep(pause)
		}
	})
}

// ledgerLink implements ledger.Store and ledger.Lock on the modelled etcd, like etcdstore.
type ledgerLink struct {
	link *link
	term fence.Term
}

func (l *ledgerLink) LedgerEntries(_ context.Context, first, last uint64, limit int) (entries []ledger.Entry, head []byte, revision int64, err error) {
	_, err = l.link.read(func() answer {
		entries, head, revision = l.link.etcd.ledgerEntries(first, last, limit)
		return answer{}
	})
	return entries, head, revision, err
}

func (l *ledgerLink) Value(_ context.Context, key string) (value []byte, revision int64, err error) {
	_, err = l.link.read(func() answer {
		kv := l.link.etcd.keys[key]
		value, revision = kv.GetValue(), kv.GetModRevision()
		return answer{}
	})
	return value, revision, err
}

func (l *ledgerLink) Keys(_ context.Context, prefix string) (keys []string, err error) {
	_, err = l.link.read(func() answer { keys = l.link.etcd.list(prefix); return answer{} })
	return keys, err
}

func (l *ledgerLink) PutFenced(_ context.Context, key string, value []byte) error {
	_, err := l.fenced(nil, fence.Put(key, bytes.Clone(value), 0))
	return err
}

func (l *ledgerLink) ReplaceFenced(_ context.Context, key string, expect int64, value []byte) (int64, error) {
	return l.fenced(fence.ModifiedAt(key, expect), fence.Put(key, bytes.Clone(value), 0))
}

func (l *ledgerLink) DeleteFenced(_ context.Context, keys ...string) error {
	for _, key := range keys {
		if _, err := l.fenced(nil, fence.Delete(key)); err != nil {
			return err
		}
	}
	return nil
}

func (l *ledgerLink) DeleteLedgerEntries(_ context.Context, first, last uint64) error {
	_, err := l.fenced(nil, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{
		Key: []byte(taskqueue.LedgerKey(first)), RangeEnd: []byte(taskqueue.LedgerKey(last) + "\x00"),
	}}})
	return err
}

func (l *ledgerLink) fenced(also *pb.Compare, op *pb.RequestOp) (int64, error) {
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
			err = errors.New("key has changed")
		case err == nil:
			err = taskqueue.ErrFenced
		}
	}
	if err != nil {
		return 0, fmt.Errorf("write under the lock: %w", err)
	}
	return a.revision, nil
}

// ledgerEntries returns the ledger entries in etcd, and the head.
func (e *etcd) ledgerEntries(first, last uint64, limit int) (entries []ledger.Entry, head []byte, revision int64) {
	for commit := first; commit <= last && len(entries) < limit; commit++ {
		if kv := e.keys[taskqueue.LedgerKey(commit)]; kv != nil {
			entries = append(entries, ledger.Entry{Commit: commit, Events: kv.Value})
		}
	}
	kv := e.keys[ledger.HeadKey]
	return entries, kv.GetValue(), kv.GetModRevision()
}

// direct is ledger.Store without a network.
type direct struct{ *etcd }

func (e direct) LedgerEntries(_ context.Context, first, last uint64, limit int) ([]ledger.Entry, []byte, int64, error) {
	entries, head, revision := e.ledgerEntries(first, last, limit)
	return entries, head, revision, nil
}

func (e direct) Value(_ context.Context, key string) ([]byte, int64, error) {
	return e.keys[key].GetValue(), e.keys[key].GetModRevision(), nil
}

func (e direct) Keys(_ context.Context, prefix string) ([]string, error) { return e.list(prefix), nil }

// ledger checks that each commit is in the ledger once, with its events, in etcd or in a file.
// This must hold after a crash at any step of the sealer.
func (c *check) ledger() {
	if c.world.plan.sealing.Every == 0 {
		return
	}
	var head ledger.Head
	if value := c.world.etcd.keys[ledger.HeadKey].GetValue(); value != nil {
		if err := json.Unmarshal(value, &head); err != nil {
			c.breaks("the ledger can be read", "head: %v", err)
		}
	}
	reader, err := ledger.Open(c.ctx, direct{c.world.etcd}, "", "")
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
		for ; next < e.Commit && len(c.events[next]) == 0; next++ {
		}
		if e.Commit != next || !bytes.Equal(e.Events, c.events[e.Commit]) {
			c.breaks("each commit is in the ledger once", "found commit %d with %[3]d bytes of events, expected commit %[2]d with %[4]d bytes", e.Commit, next, len(e.Events), len(c.events[e.Commit]))
			return
		}
		next++
	}
	for ; next <= c.state.Commit && len(c.events[next]) == 0; next++ {
	}
	if next <= c.state.Commit {
		c.breaks("each commit is in the ledger once", "the ledger ends before commit %d of %d", next, c.state.Commit)
	}
	c.sealed = max(c.sealed, head.Through)
}
