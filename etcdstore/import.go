package etcdstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore/fence"
	"trainmaster/taskqueue"
)

// ErrOccupied says that there is a job where one was to be restored.
var ErrOccupied = errors.New("there is a job already")

// jobKeys lists all keys that a job can have, in the form that ReadAll takes.
var jobKeys = []string{keyJob, keyState, keyState + "/", keyTrainers, keyPS, keyPSDesired, keyPSBlocks, taskqueue.PodsKey, "/ps_step", "/checkpoints/",
	taskqueue.EvaluationKey, taskqueue.EvaluationKey + "/", taskqueue.StrategyKey, taskqueue.StrategyKey + "/", "/ledger/", "/master/"}

// Import is a job to write to a prefix without a job.
type Import struct {
	ID       string                            // id of the restored file: a repeated import continues an interrupted one
	Name     string                            // name of the job in this store
	Settings map[string]string                 // the immutable settings
	Keys     iter.Seq2[taskqueue.Write, error] // all keys except the settings, the state and Last
	State    []byte                            // must carry a nonce
	Begin    []taskqueue.Write                 // written first, with the marker, for a repeated import
	Last     []taskqueue.Write                 // written with the state in one transaction

	// Replaces is the state that the job had when the operator decided to replace it. The keys of replacedKeys are
	// removed, and the import is written; nil: there must be no job. No master or parameter server may run.
	Replaces *Pointer
	Round    string // key of the last record of an evaluation round that stays, with Replaces
}

// replacedKeys are the keys of a job that an import replaces: tasks, trainers, ledger and set, and the decisions of evaluation and strategy. The parts of task tables, the placement of blocks and the strategy file stay.
//
//guard:later-decisions-replaced
var replacedKeys = []string{keyState, taskqueue.AsidePrefix, keyTrainers, keyLatest, "/ps_step", taskqueue.LedgerPrefix,
	taskqueue.EvaluationKey, taskqueue.RoundKey, taskqueue.ModelKey, taskqueue.StrategyKey, taskqueue.StatisticsKey}

// ImportJob writes a job under this store's prefix. The state is written last, in one transaction that compares that no other
// process interfered: until then there is no job, and after it the whole job.
//
//	no key exists  ──▶ keyRestoring, /job ──▶ keys, a batch at a time ──▶ /task_queues, no keyRestoring
//	  else ErrOccupied     │ interrupted: the same Import continues         compares keyRestoring; no state
//
// It needs no lock: a master that leads during the restore finds keyRestoring, and waits.
func (s *Store) ImportJob(ctx context.Context, a Import) error {
	marker, err := s.beginImport(ctx, a)
	if err != nil {
		return err
	}
	const maxKeys, maxBytes = 100, 512 << 10
	var batch []*pb.RequestOp
	size := 0
	flush := func() error {
		err := s.underMarker(ctx, marker, batch)
		batch, size = batch[:0], 0
		return err
	}
	for w, err := range a.Keys {
		if err != nil {
			return err
		}
		if len(batch) > 0 && (len(batch) == maxKeys || size+len(w.Value) > maxBytes) {
			if err := flush(); err != nil {
				return err
			}
		}
		batch, size = append(batch, opPut(s.abs(w.Key), w.Value, 0)), size+len(w.Key)+len(w.Value)
	}
	if len(batch) > 0 {
		if err := flush(); err != nil {
			return err
		}
	}
	return s.endImport(ctx, marker, a.State, a.Last)
}

// beginImport writes the marker if there is no job, or finds the marker of an interrupted restore of the same backup. It
// returns the marker's create revision.
func (s *Store) beginImport(ctx context.Context, a Import) (int64, error) {
	key := s.abs(keyRestoring)
	job, err := json.Marshal(newJob(a.Name, a.Settings))
	if err != nil {
		return 0, fmt.Errorf("encode %s: %w", s.abs(keyJob), err)
	}
	req := &pb.TxnRequest{
		Success: []*pb.RequestOp{opPut(key, []byte(a.ID), 0), opPut(s.abs(keyJob), job, 0)},
		Failure: []*pb.RequestOp{opGet(key)},
	}
	if a.Replaces != nil {
		req.Compare = []*pb.Compare{
			s.noneUnder(LockPrefix), s.noneUnder(keyPS), createdAt(key, 0),
			fence.ModifiedAt(s.abs(keyState), a.Replaces.state), fence.ModifiedAt(s.abs(keyLatest), a.Replaces.named),
		}
		for _, k := range replacedKeys {
			req.Success = append(req.Success, s.opsDelete(k, a.Begin)...)
		}
		//guard:later-rounds-removed
		req.Success = append(req.Success, s.opDeleteAfter(a.Round, taskqueue.RoundRecordPrefix))
	}
	for _, w := range a.Begin {
		req.Success = append(req.Success, opPut(s.abs(w.Key), w.Value, 0))
	}
	for _, k := range jobKeys {
		if a.Replaces != nil {
			break
		}
		absent := createdAt(s.abs(k), 0)
		if k[len(k)-1] == '/' {
			absent = s.noneUnder(k)
		}
		req.Compare = append(req.Compare, absent)
	}
	answer, err := s.txnUntilKnown(ctx, req)
	switch {
	case err != nil:
		return 0, fmt.Errorf("begin to restore: %w", err)
	case answer.Succeeded:
		return answer.Header.Revision, nil
	}
	var found *mvccpb.KeyValue
	if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		found = kvs[0]
	}
	switch {
	case found == nil && a.Replaces != nil:
		return 0, ErrJobRuns
	case found == nil:
		return 0, fmt.Errorf("%w: found keys of another job, such as %s or %s: choose another --job, or remove that job as described in docs/keys.md", ErrOccupied, s.abs(keyJob), s.abs(keyState))
	case string(found.Value) != a.ID:
		return 0, fmt.Errorf("%w: %s says that the restore of another file was begun here and not ended: run that again, or remove the job as docs/keys.md says", ErrOccupied, key)
	}
	return found.CreateRevision, nil
}

// underMarker does writes while the marker stands. They may be done again.
func (s *Store) underMarker(ctx context.Context, marker int64, writes []*pb.RequestOp) error {
	answer, err := s.txnUntilKnown(ctx, &pb.TxnRequest{Compare: []*pb.Compare{createdAt(s.abs(keyRestoring), marker)}, Success: writes})
	if err == nil && !answer.Succeeded {
		err = fmt.Errorf("%w: expected the key %s, found none: another process has ended the restore or removed the job", ErrOccupied, s.abs(keyRestoring))
	}
	if err != nil {
		return fmt.Errorf("restore %s and others: %w", writes[0].GetRequestPut().GetKey(), err)
	}
	return nil
}

// endImport makes the job one. An outcome that was unknown is found out by reading.
func (s *Store) endImport(ctx context.Context, marker int64, state []byte, last []taskqueue.Write) error {
	writes := []*pb.RequestOp{opPut(s.abs(keyState), state, 0), fence.Delete(s.abs(keyRestoring))}
	for _, w := range last {
		writes = append(writes, opPut(s.abs(w.Key), w.Value, 0))
	}
	answer, err := s.txnUntilKnown(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{createdAt(s.abs(keyRestoring), marker), createdAt(s.abs(keyState), 0)},
		Success: writes,
		Failure: []*pb.RequestOp{opGet(s.abs(keyState))},
	})
	switch {
	case err != nil:
		return fmt.Errorf("end the restore: %w", err)
	case answer.Succeeded:
		return nil
	}
	if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 && bytes.Equal(kvs[0].Value, state) {
		return nil // an attempt before this one did it
	}
	return fmt.Errorf("end the restore: %w: another process has ended it, or the job was removed", ErrOccupied)
}

// txnUntilKnown sends a transaction until its outcome is known. The transaction must be safe to repeat.
func (s *Store) txnUntilKnown(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	pause := backoff{least: 20 * time.Millisecond, most: time.Second}
	for {
		answer, err := s.txn(ctx, req)
		if err == nil || !errors.Is(err, taskqueue.ErrUnknownOutcome) {
			return answer, err
		}
		if sleep(ctx, pause.next()) != nil {
			return nil, err
		}
	}
}

// ParseJob reads the value of /job and checks that it was not edited.
func ParseJob(value []byte) (Job, error) {
	var j Job
	if err := json.Unmarshal(value, &j); err != nil {
		return Job{}, fmt.Errorf("%w: %s: want JSON {name, settings, digest}, found %.80q: %w", ErrCorrupt, keyJob, value, err)
	}
	if newJob(j.Name, j.Settings).Digest != j.Digest {
		return Job{}, fmt.Errorf("%w: %s: its digest does not match its settings: the value was edited", ErrCorrupt, keyJob)
	}
	return j, nil
}

// opsDelete deletes a key or, if key ends in a slash, all keys that begin with it. The keys of but stay, because etcd refuses a
// transaction that deletes and puts the same key. They must be in order.
func (s *Store) opsDelete(key string, but []taskqueue.Write) (ops []*pb.RequestOp) {
	last := opDelete(s.abs(key)).GetRequestDeleteRange()
	for _, w := range but {
		if !strings.HasPrefix(w.Key, key) {
			continue
		}
		before := &pb.DeleteRangeRequest{Key: last.Key, RangeEnd: []byte(s.abs(w.Key))}
		ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: before}})
		last.Key = append(bytes.Clone(before.RangeEnd), 0)
	}
	return append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: last}})
}

// opDeleteAfter deletes the keys with a prefix that follow a key.
func (s *Store) opDeleteAfter(key, prefix string) *pb.RequestOp {
	after := append([]byte(s.abs(max(key, prefix))), 0)
	request := &pb.DeleteRangeRequest{Key: after, RangeEnd: []byte(clientv3.GetPrefixRangeEnd(s.abs(prefix)))}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: request}}
}

// opDelete deletes a key, or with a final slash all keys with this prefix.
func opDelete(key string) *pb.RequestOp {
	request := &pb.DeleteRangeRequest{Key: []byte(key)}
	if key[len(key)-1] == '/' {
		request.RangeEnd = []byte(clientv3.GetPrefixRangeEnd(key))
	}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: request}}
}
