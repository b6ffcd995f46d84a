package restore

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/dataset"
	"trainmaster/etcdstore"
	"trainmaster/internal/usage"
	"trainmaster/master"
	"trainmaster/master/committer"
	"trainmaster/master/pscontrol"
	"trainmaster/master/snapshot"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
	"trainmaster/taskqueue"
)

// Resumption restores a job from a directory or a bucket.
type Resumption struct {
	From   string   // the directory or bucket of checkpoints
	Job    string   // name
	Roots  []string // directories that datasets must be in; none: any
	Ledger bool     // the restored job has a ledger
	Log    *logrus.Entry
}

// Into restores the job from the newest set of checkpoints in a directory or a bucket, if etcd has no state of it. If the
// job was restored before, as after a restart or by another master, Into does nothing.
func (s Resumption) Into(ctx context.Context, store *etcdstore.Store) error {
	place, err := storage.Open(s.From)
	if err != nil {
		return usage.Errorf("--resume: %w", err)
	}
	defer place.Close()
	folder := checkpoint.Store{Place: place}
	if begun, err := s.hasBegun(ctx, store, folder); begun || err != nil {
		return err
	}
	began := time.Now()
	r, err := s.openNewest(ctx, folder)
	if err != nil {
		return err
	}
	job, err := r.Restore(ctx, store, s.Job)
	if errors.Is(err, etcdstore.ErrOccupied) {
		if begun, err := s.hasBegun(ctx, store, folder); begun || err != nil { // another master was faster
			return err
		}
		return usage.Errorf("--resume %s: %w", s.From, err)
	}
	if err != nil {
		return fmt.Errorf("--resume %s: %w", s.From, err)
	}
	s.Log.WithFields(logrus.Fields{
		"set": r.Set.Number, "was_job_id": r.Set.JobID, "job_id": job.JobID, "commit": job.Commit, "epoch": job.Epoch, "delivered_again": job.Again,
		"took": time.Since(began).Round(time.Millisecond).String(),
	}).Info("job restored from its newest checkpoints")
	return nil
}

// hasBegun reports whether etcd has the job whose checkpoints are in the directory. If etcd has another job of that name, it returns
// an error.
func (s Resumption) hasBegun(ctx context.Context, store *etcdstore.Store, folder checkpoint.Store) (bool, error) {
	values, _, err := store.ReadAll(ctx, taskqueue.StateKey, pscontrol.LatestSetKey)
	if err != nil {
		return false, err
	}
	stored := values[taskqueue.StateKey]
	if stored == nil {
		return false, nil
	}
	var state taskqueue.Snapshot
	if err := etcdstore.Decode(stored, &state, committer.MaxStoredState); err != nil {
		return false, err
	}
	numbers, err := folder.Sets(ctx)
	if err != nil {
		return false, usage.Errorf("--resume %s: %w", s.From, err)
	}
	if len(numbers) == 0 {
		return true, nil // it has taken none yet
	}
	if latest := values[pscontrol.LatestSetKey]; latest != nil {
		set, err := checkpoint.ParseSet(latest)
		if err != nil {
			return false, err
		}
		if text, err := folder.ReadText(ctx, set.Number); err == nil && bytes.Equal(text, latest) {
			return true, nil
		}
	}
	if set, err := folder.ReadSet(ctx, numbers[0]); err == nil && set.JobID == hex.EncodeToString(state.JobID) {
		return true, nil
	}
	return false, usage.Errorf("--resume %s: expected an etcd without job %q, found the job at commit %d, with other checkpoints: omit the flag to continue that job, or choose another --job or etcd", s.From, s.Job, state.Commit)
}

// openNewest reads and verifies the newest set in a directory, and compares the dataset with the index in the set.
func (s Resumption) openNewest(ctx context.Context, folder checkpoint.Store) (*Plan, error) {
	refuse := func(format string, args ...any) error {
		return usage.Errorf("--resume %s: "+format, append([]any{s.From}, args...)...)
	}
	numbers, err := folder.Sets(ctx)
	switch {
	case err != nil:
		return nil, refuse("%w", err)
	case len(numbers) == 0:
		return nil, refuse("expected the directory of checkpoints of the job's parameter servers, found no set in it")
	}
	before := refuseBefore(folder, numbers)
	damaged := func(what string, err error) error {
		if errors.Is(err, checkpoint.ErrUnavailable) { // the files may be intact
			return fmt.Errorf("--resume %s: %s%w", s.From, what, err)
		}
		return refuse("%s%w%s", what, err, before)
	}
	set, err := folder.ReadSet(ctx, numbers[0])
	if err != nil {
		return nil, damaged("", err)
	}
	if set.Job != s.Job {
		return nil, refuse("expected checkpoints of job %q, found those of job %q: add --job %s, or name another directory", s.Job, set.Job, set.Job)
	}
	text, err := folder.ReadText(ctx, set.Number)
	if err != nil {
		return nil, refuse("%w", err)
	}
	state, err := folder.ReadState(ctx, set)
	if err != nil {
		return nil, damaged("", err)
	}
	if _, err := folder.Open(ctx, set); err != nil {
		return nil, damaged(fmt.Sprintf("set %d is not complete: ", set.Number), err)
	}
	file, err := snapshot.Parse(fmt.Sprintf("%s/%s/%s", folder.Place, checkpoint.SetsDir, set.State.Name), state)
	if err != nil {
		return nil, refuse("%w", err)
	}
	r := &Plan{File: file, Ledger: s.Ledger, Set: set, Text: text}
	if r.Tables, err = IndexAgain(ctx, file, s.Roots, s.Log); err != nil {
		return nil, refuse("%w", err)
	}
	return r, nil
}

// refuseBefore says what to do about a set that cannot be used.
func refuseBefore(folder checkpoint.Store, numbers []uint64) string {
	newest := fmt.Sprintf("%s/%s/%08d.json", folder.Place, checkpoint.SetsDir, numbers[0])
	if len(numbers) > 1 {
		return fmt.Sprintf("; to restore the older set %d, move %s away", numbers[1], newest)
	}
	return "; there is no older set"
}

// IndexAgain builds the task tables of the datasets from their files. It returns an error if a file differs from the snapshot.
func IndexAgain(ctx context.Context, file *snapshot.File, roots []string, log *logrus.Entry) (tables []indexedTable, err error) {
	for item, err := range file.Items() {
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(item.Key, snapshot.DatasetPrefix) {
			continue
		}
		var want []snapshot.DataFile
		if err := json.Unmarshal(item.Value, &want); err != nil {
			return nil, fmt.Errorf("%s: %w", item.Key, err)
		}
		t, err := indexDataset(ctx, want, roots, log)
		if err != nil {
			return nil, fmt.Errorf("dataset %d: %w", len(tables), err)
		}
		// The id depends only on the snapshot, so an interrupted restore continues with the same keys.
		t.id = fmt.Sprintf("%.15s%x", file.Digest, len(tables))
		tables = append(tables, t)
	}
	return tables, nil
}

func indexDataset(ctx context.Context, want []snapshot.DataFile, roots []string, log *logrus.Entry) (t indexedTable, err error) {
	if len(want) == 0 {
		t.table = taskqueue.NewTable(0) // of an online dataset before its first append
		return t, nil
	}
	names := make([]string, len(want))
	entries, arrival := make([]dataset.Entry, len(want)), map[string]int{}
	for i, f := range want {
		arrival[f.Path] = i
		names[i], entries[i] = f.Path, dataset.Entry{Path: f.Path, Size: f.Size}
	}
	found, err := dataset.Source{Roots: roots}.List(ctx, names)
	if errors.Is(err, fs.ErrNotExist) {
		return t, fmt.Errorf("expected the data of the job at its former paths, which its tasks name: %w", err)
	}
	if err != nil {
		return t, err
	}
	if text := dataset.Difference(entries, found.Entries()); text != "" {
		return t, fmt.Errorf("the data has changed: %s", text)
	}
	//guard:resumed-files-in-order-of-arrival
	slices.SortFunc(found.Files, func(a, b dataset.File) int { return arrival[a.Path] - arrival[b.Path] })
	log.WithField("files", len(found.Files)).Info("comparing the data with the index of the job")
	if t.table, err = master.TableOf(ctx, &dataset.Indexer{}, found); err != nil {
		return t, err
	}
	t.digest = found.Digest
	for i, f := range t.table.Files() {
		if sum := t.table.IndexDigest(i); hex.EncodeToString(sum[:]) != want[i].Index {
			return t, fmt.Errorf("the data has changed: %s: expected chunks whose index has the digest %.12s, found %.12x", f.Path, want[i].Index, sum)
		}
		if sum, _ := t.table.ChecksumsDigest(i); want[i].Checksums != "" && hex.EncodeToString(sum[:]) != want[i].Checksums {
			return t, fmt.Errorf("the data has changed: %s: expected chunks whose checksums have the digest %.12s, found %.12x", f.Path, want[i].Checksums, sum)
		}
	}
	return t, nil
}
