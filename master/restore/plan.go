package restore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	"trainmaster/etcdstore"
	"trainmaster/ledger"
	"trainmaster/master/committer"
	"trainmaster/master/pscontrol"
	"trainmaster/master/snapshot"
	"trainmaster/pserver/checkpoint"
	"trainmaster/taskqueue"
)

// Plan restores a job from a snapshot into an etcd that does not have it.
type Plan struct {
	File   *snapshot.File
	Ledger bool // the restored job has a ledger: the ledger of the snapshot, or a new one

	Set    *checkpoint.Set // the set whose cut the state is at; nil: the state is not at a cut
	Text   []byte          // of the set
	Tables []indexedTable  // of the datasets; nil: the snapshot has them, or etcd

	replaces *etcdstore.Pointer // the job that is replaced; nil: none
	replaced []string           // ids of the former job instances, hexadecimal
	rounds   []taskqueue.Write  // records of evaluation rounds that the job had at the cut
	round    string             // key of the last record

	// The method queue reads the next two fields from the snapshot.
	outline taskqueue.Outline // of the former ledger
	desired []byte            // number of parameter servers; nil: the master writes it
}

// indexedTable is a task table that was built from the files of a dataset.
type indexedTable struct {
	table  *taskqueue.Table
	digest [32]byte // of the files
	id     string   // of its parts in etcd
	parts  [][]byte
}

// Restore writes the job of the snapshot to the prefix of the store.
func (r *Plan) Restore(ctx context.Context, store *etcdstore.Store, name string) (Result, error) {
	queue, settings, err := r.Queue()
	if err != nil {
		return Result{}, fmt.Errorf("%w: %q: %w", snapshot.ErrDamaged, r.File.Name, err)
	}
	cluster, err := store.ClusterID(ctx)
	if err != nil {
		return Result{}, err
	}
	var random [24]byte // the job id, and a nonce
	if _, err := rand.Read(random[:]); err != nil {
		return Result{}, fmt.Errorf("choose a job id: %w", err)
	}
	if err := queue.Revive(name, [16]byte(random[:]), cluster); err != nil {
		return Result{}, err
	}
	events := queue.Ready().Entries // what else it has to write are keys of sessions, to be deleted; they are not restored
	state := queue.Snapshot(0, binary.LittleEndian.Uint64(random[16:]))
	encoded, err := etcdstore.Encode(state)
	if err != nil {
		return Result{}, err
	}
	last, err := r.lastKeys(queue, events)
	if err != nil {
		return Result{}, err
	}
	begin, err := r.beginKeys()
	if err != nil {
		return Result{}, err
	}
	err = store.ImportJob(ctx, etcdstore.Import{
		Begin: begin,
		ID:    r.File.Digest, Name: name, Settings: settings, State: encoded, Keys: r.Keys(), Last: last, Replaces: r.replaces, Round: r.round,
	})
	job := Result{
		Job: name, JobID: hex.EncodeToString(state.JobID), Cluster: fmt.Sprintf("%x", cluster), Commit: state.Commit, Epoch: state.Epoch,
		Restores: state.Restores, Again: len(queue.PendingTasks()), Ledger: r.File.Head.Ledger,
	}
	return job, err
}

// Queue returns the saved job, without its tables, and its settings.
func (r *Plan) Queue() (*taskqueue.Queue, map[string]string, error) {
	small := map[string][]byte{}
	for item, err := range r.File.Items() {
		if err != nil {
			return nil, nil, err
		}
		if item.Key == taskqueue.StateKey || item.Key == jobKey || strings.HasPrefix(item.Key, taskqueue.RosterPrefix) {
			small[item.Key] = item.Value
		}
		if item.Key == psDesiredKey {
			r.desired = item.Value
		}
	}
	job, err := etcdstore.ParseJob(small[jobKey])
	if err != nil {
		return nil, nil, err
	}
	var state taskqueue.Snapshot
	if err := etcdstore.Decode(small[taskqueue.StateKey], &state, committer.MaxStoredState); err != nil {
		return nil, nil, err
	}
	if _, err := state.Upgrade(); err != nil {
		return nil, nil, err
	}
	if r.Tables != nil && len(r.Tables) != len(state.Sets) {
		return nil, nil, fmt.Errorf("expected %d datasets, found %d", len(state.Sets), len(r.Tables))
	}
	for i := range r.Tables {
		if err := r.Tables[i].replace(&state.Sets[i]); err != nil {
			return nil, nil, fmt.Errorf("dataset %d: %w", i, err)
		}
	}
	queue, err := taskqueue.Restore(&state, committer.RosterOf(small), make([]*taskqueue.Table, len(state.Sets)), taskqueue.BackupOptions)
	if err != nil {
		return nil, nil, err
	}
	r.outline = queue.Outline()
	if r.Set != nil {
		err = queue.CountCut(r.Set.Number)
	}
	return queue, job.Settings, err
}

// replace puts the table into the state of a dataset.
func (t *indexedTable) replace(set *taskqueue.SetSnapshot) error {
	t.table.Group(set.ChunksPerTask)
	if set.Online {
		t.digest = [32]byte(set.Digest) // of no file: the files are compared one by one
	}
	if t.table.Chunks() != set.Chunks || t.table.Tasks() != set.Tasks || string(t.digest[:]) != string(set.Digest) {
		return fmt.Errorf("expected %d chunks in %d tasks, and files with the digest %.8x, found %d in %d, and %.8x: the data has changed", set.Chunks, set.Tasks, set.Digest, t.table.Chunks(), t.table.Tasks(), t.digest)
	}
	parts, err := committer.TableParts(etcdstore.Encode, t.table, 0)
	if err != nil {
		return fmt.Errorf("encode the task table: %w", err)
	}
	t.parts = parts
	digest := committer.PartsDigest(set.Online, [32]byte{}, parts)
	set.ReportID, set.Parts, set.PartsDigest = t.id, len(parts), digest[:]
	return nil
}

// Keys yields the keys of the job except its settings, its state and lastKeys. Sessions are not restored.
func (r *Plan) Keys() iter.Seq2[taskqueue.Write, error] {
	return func(yield func(taskqueue.Write, error) bool) {
		for item, err := range r.File.Items() {
			if r.leaves(item.Key) {
				continue
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
		for _, record := range r.rounds {
			if !yield(record, nil) {
				return
			}
		}
		for _, t := range r.Tables {
			for i, part := range t.parts {
				if !yield(taskqueue.Write{Key: etcdstore.PartKey(t.id, i), Value: part}, nil) {
					return
				}
			}
		}
	}
}

// leaves reports whether a key of the snapshot is not copied unchanged.
func (r *Plan) leaves(key string) bool {
	switch {
	case slices.Contains([]string{taskqueue.StateKey, jobKey, psDesiredKey}, key):
		return true
	case r.Set != nil && (key == taskqueue.StepKey || key == pscontrol.LatestSetKey): // the set has their values
		return true
	}
	return strings.HasPrefix(key, taskqueue.RosterPrefix) || strings.HasPrefix(key, snapshot.DatasetPrefix)
}

// beginKeys returns the keys that mark the beginning of the ledger. They are written first: the adoption of a replaced job deletes
// its ledger. If the adoption is interrupted, these keys show the next attempt that there was a ledger.
func (r *Plan) beginKeys() ([]taskqueue.Write, error) {
	if !r.Ledger || r.File.Head.Ledger {
		return nil, nil
	}
	begin, err := json.Marshal(ledger.Begin{Outline: r.outline, Replaced: r.replaced})
	return []taskqueue.Write{{Key: ledger.BeginKey, Value: begin}}, err
}

// lastKeys returns the keys that are written last: with them, masters continue the job.
func (r *Plan) lastKeys(queue *taskqueue.Queue, events []byte) (keys []taskqueue.Write, err error) {
	if r.desired != nil {
		keys = append(keys, taskqueue.Write{Key: psDesiredKey, Value: r.desired})
	}
	if r.Set != nil {
		keys = append(keys, taskqueue.Write{Key: pscontrol.LatestSetKey, Value: r.Text})
		if r.Set.Mode == checkpoint.Sync {
			keys = append(keys, taskqueue.Write{Key: taskqueue.StepKey, Value: taskqueue.Step{Version: r.Set.Version, Epoch: queue.Epoch()}.Encode()})
		}
	}
	if r.Ledger && len(events) > 0 {
		keys = append(keys, taskqueue.Write{Key: taskqueue.LedgerKey(queue.Commit()), Value: events})
	}
	return keys, nil
}

// Result describes a restored job.
type Result struct {
	Job      string `json:"job"`
	JobID    string `json:"job_id"`
	Cluster  string `json:"cluster"`
	Commit   uint64 `json:"commit"`
	Epoch    uint32 `json:"epoch"`
	Restores uint8  `json:"restores"`
	Again    int    `json:"delivered_again"`
	Ledger   bool   `json:"ledger"`
}
