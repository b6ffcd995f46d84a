// Package fence implements the transactions of a term. It is pure, so that a modeled etcd can execute the same transactions as
// the real etcd.
//
// # Guarantee
//
// Each transaction compares the lock key's create revision, so that a leader that lost the lock changes nothing. Commit
// compares the state's own last revision too, so that an earlier transaction of the same leader that arrives late changes
// nothing either.
package fence

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/taskqueue"
)

// Term identifies the time from one acquisition of the lock to its loss.
type Term struct {
	Prefix   string // before every key of the job
	LockKey  string // absolute
	Revision int64  // create revision of LockKey: the fencing token
	Lease    int64  // that LockKey lives on
}

// StateKey is the key of the state, without the prefix.
const StateKey = taskqueue.StateKey

// Compares returns the comparisons of a transaction that writes the state or a task table, the lock first. expectMod is the
// last revision of the state; 0: it must not exist.
func (t *Term) Compares(expectMod int64) []*pb.Compare {
	return []*pb.Compare{
		//guard:commit-requires-lock
		CreatedAt(t.LockKey, t.Revision),
		//guard:commit-requires-state
		ModifiedAt(t.Prefix+StateKey, expectMod),
	}
}

// Commit replaces the state and does the writes.
func (t *Term) Commit(expectMod int64, state []byte, writes []taskqueue.Write) *pb.TxnRequest {
	ops := make([]*pb.RequestOp, 1, 1+len(writes))
	ops[0] = Put(t.Prefix+StateKey, state, 0)
	for i := range writes {
		ops = append(ops, t.Op(&writes[i]))
	}
	return &pb.TxnRequest{Compare: t.Compares(expectMod), Success: ops}
}

// Read reads a key while the lock is held.
func (t *Term) Read(key string) *pb.TxnRequest {
	return &pb.TxnRequest{
		//guard:read-requires-lock
		Compare: []*pb.Compare{CreatedAt(t.LockKey, t.Revision)},
		Success: []*pb.RequestOp{Get(t.Prefix + key)},
	}
}

// Op is one write of a transaction.
func (t *Term) Op(w *taskqueue.Write) *pb.RequestOp {
	key := t.Prefix + w.Key
	switch {
	case w.Delete:
		return Delete(key)
	case w.LeaseBound:
		return Put(key, w.Value, t.Lease)
	}
	return Put(key, w.Value, 0)
}

// CreatedAt is true while key still exists as created at revision; 0: while there is none.
func CreatedAt(key string, revision int64) *pb.Compare {
	return &pb.Compare{
		Result:      pb.Compare_EQUAL,
		Target:      pb.Compare_CREATE,
		Key:         []byte(key),
		TargetUnion: &pb.Compare_CreateRevision{CreateRevision: revision},
	}
}

// ModifiedAt is true while key has not been written since revision; 0: while there is none.
func ModifiedAt(key string, revision int64) *pb.Compare {
	return &pb.Compare{
		Result:      pb.Compare_EQUAL,
		Target:      pb.Compare_MOD,
		Key:         []byte(key),
		TargetUnion: &pb.Compare_ModRevision{ModRevision: revision},
	}
}

// Put writes a key, which goes with the lease unless that is 0.
func Put(key string, value []byte, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
		RequestPut: &pb.PutRequest{Key: []byte(key), Value: value, Lease: lease},
	}}
}

// Delete deletes a key.
func Delete(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)},
	}}
}

// Get reads a key.
func Get(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
		RequestRange: &pb.RangeRequest{Key: []byte(key)},
	}}
}
