package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/etcdstore/fence"
	"trainmaster/ledger"
	ports "trainmaster/master/store"
	"trainmaster/taskqueue"
)

const (
	leaseTTL    = 5 * time.Second
	leaseMargin = leaseTTL / 10
	callTimeout = 5 * time.Second
	lockPrefix  = "/master/lock/"
	addrKey     = "/master/addr"
	holdKey     = "/master/holddown"
)

var (
	errNoAnswer = errors.New("etcd does not answer")
	errNotSent  = errors.New("request not sent to etcd")
)

// link connects a process to etcd, with faults.
type link struct {
	*process
	etcd  *etcd
	world *world
	cut   *bool
	heard *time.Duration // time of the last answer of etcd
	idle  func()         // called before the process waits
}

// call sends a request. do runs if the request arrives.
func (l *link) call(do func() (answer, error)) (a answer, err error) {
	f := &l.world.plan.faults
	if l.now < l.world.plan.quiet && l.chance(f.notSent) {
		l.idle()
		l.sleep(l.between(0, 20*time.Millisecond))
		return a, errNotSent
	}
	there, back := l.etcdDelay(), l.etcdDelay()
	lostRequest, lostReply, early := false, false, callTimeout
	if l.now < l.world.plan.quiet {
		lostRequest, lostReply = l.chance(f.lostRequest), l.chance(f.lostReply)
		if l.chance(f.late) {
			there += l.between(0, 12*time.Second)
		}
		if (lostRequest || lostReply || there > time.Second) && l.chance(0.7) {
			early = l.between(time.Millisecond, time.Second) // the connection is reset
		}
	}
	err = errNoAnswer
	l.idle()
	l.wait(func(wake func()) {
		l.loop.after(early, wake)
		if lostRequest {
			return
		}
		over := false
		l.loop.after(early, func() { over = true })
		l.loop.after(there, func() {
			if l.etcd.down || *l.cut && there < time.Second {
				return
			}
			got, failed := do()
			if lostReply || over {
				return
			}
			l.loop.after(back, func() {
				if !over && !*l.cut {
					over = true
					a, err = got, failed
					*l.heard = l.now
					wake()
				}
			})
		})
	})
	return a, err
}

func (l *link) etcdDelay() time.Duration {
	if l.now < l.world.plan.quiet && l.chance(l.world.plan.faults.slow) {
		return l.between(10*time.Millisecond, 2*time.Second)
	}
	return l.between(300*time.Microsecond, 3*time.Millisecond)
}

// txn sends a transaction without retries.
func (l *link) txn(req *pb.TxnRequest) (answer, error) {
	return l.call(func() (answer, error) { return l.etcd.txn(req) })
}

// read repeats a read until it is answered or callTimeout has passed.
func (l *link) read(do func() answer) (answer, error) {
	for began := l.now; ; {
		a, err := l.call(func() (answer, error) { return do(), nil })
		if err == nil || l.now-began >= callTimeout {
			return a, err
		}
		l.sleep(50 * time.Millisecond)
	}
}

// store is what a term needs of etcd. The embedded interface is nil: a method that a driven
// term does not call.
type store struct {
	ports.Store
	link *link
}

func (s *store) ClusterID(context.Context) (uint64, error) { return 7, nil }

func (s *store) Parts(_ context.Context, reportID string, first, n int) ([][]byte, int64, error) {
	if reportID == onlineReport {
		parts, err := s.parts(reportID, first, n)
		return parts, 0, err
	}
	part := s.link.world.part
	if held := s.link.world.heldOut; held != nil && reportID == held.ReportID {
		part = s.link.world.heldOutPart
	}
	parts := make([][]byte, n)
	for i := range parts {
		parts[i] = part
	}
	return parts, 0, nil
}

func (s *store) Roster(context.Context) (map[string][]byte, error) {
	roster := map[string][]byte{}
	_, err := s.link.read(func() answer {
		clear(roster)
		for _, key := range s.link.etcd.list(taskqueue.RosterPrefix) {
			roster[strings.TrimPrefix(key, taskqueue.RosterPrefix)] = s.link.etcd.keys[key].Value
		}
		return answer{}
	})
	return roster, err
}

func (s *store) Prefixed(_ context.Context, prefix string) (map[string][]byte, int64, error) {
	values := map[string][]byte{}
	_, err := s.link.read(func() answer {
		clear(values)
		for _, key := range s.link.etcd.list(prefix) {
			values[key] = s.link.etcd.keys[key].Value
		}
		return answer{}
	})
	return values, 0, err
}

func (s *store) Value(_ context.Context, key string) ([]byte, int64, error) {
	var value []byte
	_, err := s.link.read(func() answer {
		value = nil
		if kv, ok := s.link.etcd.keys[key]; ok {
			value = kv.Value
		}
		return answer{}
	})
	return value, 0, err
}

func (s *store) Encode(v any) ([]byte, error) { return s.link.world.codec.encode(v) }

func (s *store) Decode(b []byte, v any, _ int64) error { return s.link.world.codec.decode(b, v) }

// codec encodes the state. The real encoding, gob and gzip, takes most of the time of a history.
// Most histories therefore keep the columns in memory and store a number.
type codec struct {
	real bool
	kept []*taskqueue.Snapshot
}

func (c *codec) encode(v any) ([]byte, error) {
	if s, ok := v.(*taskqueue.Snapshot); ok && !c.real {
		c.kept = append(c.kept, s)
		return binary.BigEndian.AppendUint64(nil, uint64(len(c.kept))), nil
	}
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(gob.NewEncoder(zip).Encode(v), zip.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (c *codec) decode(b []byte, v any) error {
	if s, ok := v.(*taskqueue.Snapshot); ok && !c.real {
		*s = *c.kept[binary.BigEndian.Uint64(b)-1]
		return nil
	}
	zip, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return err
	}
	return gob.NewDecoder(zip).Decode(v)
}

// lock is a held lock: ports.Leadership over the modelled etcd. The embedded interface is nil, because ledgerLink writes the ledger.
type lock struct {
	ledger.Lock
	link    *link
	term    fence.Term
	trusted time.Duration // until then, the lease is certainly valid
	lost    chan struct{}
	gone    bool
	wake    func() // wakes the waiting process of the leader
}

func (k *lock) Revision() int64       { return k.term.Revision }
func (k *lock) TTL() time.Duration    { return leaseTTL }
func (k *lock) Lost() <-chan struct{} { return k.lost }
func (k *lock) Valid() bool           { return !k.gone && k.link.now < k.trusted }

func (k *lock) lose(why string) {
	if !k.gone {
		k.gone = true
		close(k.lost)
		k.link.note("%s: term %d lost: %s", k.link.name, k.term.Revision, why)
		if k.wake != nil {
			k.wake()
		}
	}
}

// guard renews the lease, and loses the lock if no renewal is answered in time.
func (k *lock) guard() {
	l := k.link
	if k.gone {
		return
	}
	if l.now >= k.trusted {
		// After a pause, the process may notice the time later.
		l.machine.after(l.between(0, 100*time.Millisecond), func() { k.lose("no keep-alive answered in time") })
		return
	}
	sent := l.now
	if !(l.now < l.world.plan.quiet && l.chance(l.world.plan.faults.lostRequest)) {
		l.loop.after(l.etcdDelay(), func() {
			if l.etcd.down || *l.cut || !l.etcd.renew(k.term.Lease) {
				return
			}
			l.machine.after(l.etcdDelay(), func() {
				*l.heard = l.now
				k.trusted = max(k.trusted, sent+leaseTTL-leaseMargin)
			})
		})
	}
	l.machine.after(min(leaseTTL/3, k.trusted-l.now), k.guard)
}

func (k *lock) ReadState(context.Context) ([]byte, int64, error) {
	req := k.term.Read(fence.StateKey)
	a, err := k.link.read(func() answer { a, _ := k.link.etcd.txn(req); return a })
	k.link.world.check.returns(k)
	switch {
	case err != nil:
		return nil, 0, err
	case !a.ok:
		return nil, 0, fmt.Errorf("%w: lock not found", taskqueue.ErrFenced)
	}
	return a.found[0].GetValue(), a.found[0].GetModRevision(), nil
}

func (k *lock) Commit(ctx context.Context, expectMod int64, state []byte, writes []taskqueue.Write) (int64, error) {
	k.link.world.check.checkBatch(k, state)
	a, err := k.link.txn(k.term.Commit(expectMod, bytes.Clone(state), writes))
	k.link.world.check.returns(k)
	switch {
	case err == nil && a.ok:
		return a.revision, nil
	case err == nil, errors.Is(err, errLeaseGone):
		err = taskqueue.ErrFenced
	case errors.Is(err, errNoSpace): // a write that crosses the quota is applied
		found, revision, failed := k.ReadState(ctx)
		switch {
		case failed != nil:
			err = taskqueue.ErrUnknownOutcome
		case revision == expectMod:
			err = taskqueue.ErrStoreFull
		case bytes.Equal(found, state):
			return revision, nil
		default:
			err = taskqueue.ErrFenced
		}
	case errors.Is(err, errNoAnswer):
		err = taskqueue.ErrUnknownOutcome
	}
	k.link.world.check.sent(k, err)
	return 0, fmt.Errorf("commit: %w", err)
}

func (k *lock) PutParts(ctx context.Context, expectMod int64, parts []taskqueue.Write, _ func(int, int)) (err error) {
	began := k.link.now
	defer func() { k.link.world.check.putParts(k, k.link.now-began, err) }()
	for _, part := range parts {
		if err := k.putPart(ctx, expectMod, part); err != nil {
			return fmt.Errorf("put %s: %w", part.Key, err)
		}
	}
	return nil
}

func (k *lock) Announce(_ context.Context, addr string, term uint64) error {
	value, err := json.Marshal(announced{addr, term})
	if err != nil {
		return err
	}
	a, err := k.link.txn(&pb.TxnRequest{Compare: k.term.Compares(0)[:1], Success: []*pb.RequestOp{fence.Put(addrKey, value, k.term.Lease)}})
	if err == nil && !a.ok {
		err = taskqueue.ErrFenced
	}
	return err
}

// announced is the value under /master/addr.
type announced struct {
	Addr string
	Term uint64
}

func (k *lock) Resign(context.Context) error {
	k.lose("resigned")
	_, err := k.link.call(func() (answer, error) {
		k.link.etcd.revoke(k.term.Lease)
		return answer{}, nil
	})
	return err
}
