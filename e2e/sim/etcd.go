package sim

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"trainmaster/taskqueue"
)

// etcd is a modelled etcd with one history of revisions. It executes the transactions of the
// production code, including compares, and expires leases on its own clock.
type etcd struct {
	*loop
	revision int64
	keys     map[string]*mvccpb.KeyValue
	leases   map[int64]*lease
	granted  int64
	down     bool // no member answers
	ledger   bool // the ledger is kept
	full     bool // every write is refused
	filling  bool // the next write is applied and answered as refused, and then etcd is full
	refused  uint64
	changed  []func(key string)
	wrote    func(*pb.TxnRequest) // called after each applied transaction with writes
}

type lease struct {
	ttl     time.Duration
	expires time.Duration
}

var (
	errNoSpace   = errors.New("etcd: database space exceeded")
	errLeaseGone = errors.New("etcd: lease not found")
)

func newEtcd(l *loop) *etcd {
	return &etcd{loop: l, revision: 1, keys: map[string]*mvccpb.KeyValue{}, leases: map[int64]*lease{}}
}

// offer grants a lease to a master that campaigns; a full etcd refuses.
func (e *etcd) offer(ttl time.Duration) (int64, error) {
	if e.full {
		return 0, errNoSpace
	}
	return e.grant(ttl), nil
}

func (e *etcd) grant(ttl time.Duration) int64 {
	e.granted++
	e.leases[e.granted] = &lease{ttl: ttl}
	e.renew(e.granted)
	return e.granted
}

// renew extends a lease. It returns false if the lease does not exist.
func (e *etcd) renew(id int64) bool {
	held := e.leases[id]
	if held == nil {
		return false
	}
	held.expires = e.now + held.ttl
	e.after(held.ttl, func() { e.expire(id) })
	return true
}

func (e *etcd) expire(id int64) {
	if held := e.leases[id]; held != nil && e.now >= held.expires {
		if e.down { // without a quorum no lease expires
			held.expires = e.now + held.ttl
			e.after(held.ttl, func() { e.expire(id) })
			return
		}
		e.note("etcd: lease %d expired", id)
		e.revoke(id)
	}
}

// lead elects a new leader of etcd, which renews every lease.
func (e *etcd) lead() {
	for id := int64(1); id <= e.granted; id++ {
		e.renew(id)
	}
}

func (e *etcd) revoke(id int64) {
	delete(e.leases, id)
	e.revision++
	for _, key := range e.list("/master/") {
		if e.keys[key].Lease == id {
			delete(e.keys, key)
			e.notify(key)
		}
	}
}

func (e *etcd) list(prefix string) []string {
	var keys []string
	for key := range e.keys {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// first returns the key with the lowest create revision below a prefix.
func (e *etcd) first(prefix string) *mvccpb.KeyValue {
	var first *mvccpb.KeyValue
	for _, key := range e.list(prefix) {
		if kv := e.keys[key]; first == nil || kv.CreateRevision < first.CreateRevision {
			first = kv
		}
	}
	return first
}

func (e *etcd) notify(key string) {
	for _, f := range e.changed {
		f(key)
	}
}

func (e *etcd) holds(c *pb.Compare) bool {
	kv := e.keys[string(c.Key)]
	switch {
	case c.Result != pb.Compare_EQUAL:
	case c.Target == pb.Compare_CREATE:
		return kv.GetCreateRevision() == c.GetCreateRevision()
	case c.Target == pb.Compare_MOD:
		return kv.GetModRevision() == c.GetModRevision()
	}
	panic(fmt.Sprintf("sim: compare not modelled: %v", c))
}

// answer is the result of a transaction.
type answer struct {
	ok       bool
	revision int64
	found    []*mvccpb.KeyValue // results of the gets; nil for an absent key
}

// txn executes a transaction as etcd does: all or nothing, at one revision.
func (e *etcd) txn(req *pb.TxnRequest) (answer, error) {
	for _, c := range req.Compare {
		if !e.holds(c) {
			return answer{revision: e.revision}, nil
		}
	}
	writes := slices.ContainsFunc(req.Success, func(op *pb.RequestOp) bool { return op.GetRequestRange() == nil })
	if writes {
		if e.full {
			e.refused++
			return answer{}, errNoSpace
		}
		for _, op := range req.Success {
			if put := op.GetRequestPut(); put != nil && put.Lease != 0 && e.leases[put.Lease] == nil {
				return answer{}, errLeaseGone
			}
		}
		e.revision++
	}
	a := answer{ok: true, revision: e.revision}
	for _, op := range req.Success {
		e.execute(op, &a)
	}
	if writes && e.wrote != nil {
		e.wrote(req)
	}
	if writes && e.filling {
		e.note("etcd: a write was applied and crossed the quota")
		e.filling, e.full = false, true
		return answer{}, errNoSpace
	}
	return a, nil
}

func (e *etcd) execute(op *pb.RequestOp, a *answer) {
	switch r := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		a.found = append(a.found, e.keys[string(r.RequestRange.Key)])
	case *pb.RequestOp_RequestDeleteRange:
		key, end := string(r.RequestDeleteRange.Key), string(r.RequestDeleteRange.RangeEnd)
		if end != "" {
			maps.DeleteFunc(e.keys, func(k string, _ *mvccpb.KeyValue) bool { return k >= key && k < end })
			break
		}
		delete(e.keys, key)
		e.notify(key)
	case *pb.RequestOp_RequestPut:
		key := string(r.RequestPut.Key)
		kv := &mvccpb.KeyValue{Key: r.RequestPut.Key, Value: bytes.Clone(r.RequestPut.Value), CreateRevision: e.revision, ModRevision: e.revision, Lease: r.RequestPut.Lease}
		if old := e.keys[key]; old != nil {
			kv.CreateRevision = old.CreateRevision
		}
		if e.ledger || !strings.HasPrefix(key, taskqueue.LedgerPrefix) { // otherwise check reads the ledger as it is written
			e.keys[key] = kv
		}
		e.notify(key)
	}
}
