package restore

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/internal/usage"
	"trainmaster/ledger"
	"trainmaster/master/committer"
	"trainmaster/master/evaluation"
	"trainmaster/master/pscontrol"
	"trainmaster/master/rounds"
	"trainmaster/master/snapshot"
	"trainmaster/pserver/checkpoint"
	"trainmaster/taskqueue"
)

const (
	jobKey       = "/job"
	psDesiredKey = "/ps_desired"
)

// ErrNoJob is the error of a job that etcd has no state of.
var ErrNoJob = errors.New("job not found")

// Backup collects the state of a job for a file.
type Backup struct {
	Store     *etcdstore.Store
	Job       string // name
	TakenBy   string // version of this program
	Ledger    bool
	LedgerDir string

	values map[string][]byte // all keys at one revision, except parts and ledger
	state  taskqueue.Snapshot
	head   snapshot.Head
	reader *ledger.Reader
	set    []byte // the latest; nil: none
}

// Save writes the job to a file. With a checkpoint store in folder, the file also has the parameters of the latest checkpoint set in it, and the state of
// the job at the cut of that set. Long copies are reported on progress. The error is ErrNoJob if etcd has no state of the job.
func (b *Backup) Save(ctx context.Context, path string, folder *checkpoint.Store, progress io.Writer) (err error) {
	if err := b.read(ctx); err != nil {
		return err
	}
	content := snapshot.Content{Head: b.head, Items: b.items(ctx)}
	if folder != nil {
		members, openErr := b.addModel(ctx, *folder)
		if openErr != nil {
			return openErr
		}
		defer func() { err = errors.Join(err, members.Close()) }()
		content = snapshot.Content{Head: b.head, Items: b.items(ctx), Files: filesOf(members, newTransfer(progress, "parameters saved", members.Bytes()))}
	}
	return snapshot.Write(path, content)
}

// read reads what may change, in one transaction. The parts that the state names never do, and the ledger only grows.
func (b *Backup) read(ctx context.Context) error {
	var err error
	var revision int64
	if b.values, revision, err = b.Store.ReadAll(ctx, jobKey, taskqueue.StateKey, taskqueue.AsidePrefix, taskqueue.RosterPrefix, psDesiredKey, taskqueue.SecretKey, taskqueue.StepKey, pscontrol.LatestSetKey, evaluation.Key, evaluation.Key+"/", taskqueue.StrategyKey, taskqueue.StrategyKey+"/"); err != nil {
		return err
	}
	if b.values[taskqueue.StateKey] == nil {
		return ErrNoJob
	}
	b.set = b.values[pscontrol.LatestSetKey]
	delete(b.values, pscontrol.LatestSetKey) // it is of use with its files only
	// What could not be restored is not saved.
	if _, err := etcdstore.ParseJob(b.values[jobKey]); err != nil {
		return err
	}
	queue, err := committer.Stored(ctx, b.Store, b.values[taskqueue.StateKey], committer.RosterOf(b.values))
	if err != nil {
		return err
	}
	if err := etcdstore.Decode(b.values[taskqueue.StateKey], &b.state, committer.MaxStoredState); err != nil {
		return err
	}
	if b.Ledger {
		if b.reader, err = ledger.Open(ctx, b.Store, b.Job, b.LedgerDir); err != nil {
			return err
		}
		if gone := b.reader.Outline().Commit; gone > 0 {
			return usage.Errorf("ledger: expected it from commit 1 on, found it deleted up to commit %d (--ledger-keep of the master): save the job with --ledger=false", gone)
		}
	}
	s := &b.state
	if b.reader != nil && len(s.Sets) > 0 { // with a dataset there are events, unless the master wrote no ledger
		found := false
		for _, err := range b.reader.Entries(ctx, s.Commit) {
			if err != nil {
				return err
			}
			found = true
			break
		}
		if !found {
			b.reader = nil
		}
	}
	b.head = snapshot.Head{
		Job: s.Job, JobID: hex.EncodeToString(s.JobID), Cluster: fmt.Sprintf("%x", s.Cluster), Revision: revision, Format: s.Format,
		Commit: s.Commit, Epoch: s.Epoch, Status: s.Status.String(), Restores: s.Restores, Ledger: b.reader != nil,
		TakenAt: time.Now().UTC().Format(time.RFC3339), TakenBy: b.TakenBy, Datasets: snapshot.DatasetsOf(queue),
	}
	return nil
}

// items yields what goes into the file: small things first, then the parts, then the ledger.
func (b *Backup) items(ctx context.Context) iter.Seq2[taskqueue.Write, error] {
	return func(yield func(taskqueue.Write, error) bool) {
		for _, key := range slices.Sorted(maps.Keys(b.values)) {
			if !yield(taskqueue.Write{Key: key, Value: b.values[key]}, nil) {
				return
			}
		}
		for _, set := range b.state.Sets {
			if b.values[snapshot.DatasetKey(0)] != nil {
				break // the restore builds the tables from the files
			}
			parts, _, err := b.Store.Parts(ctx, set.ReportID, 0, set.Parts)
			if err != nil {
				yield(taskqueue.Write{}, err)
				return
			}
			for i, part := range parts {
				if !yield(taskqueue.Write{Key: etcdstore.PartKey(set.ReportID, i), Value: part}, nil) {
					return
				}
			}
		}
		if b.reader == nil {
			return
		}
		for e, err := range b.reader.Entries(ctx, b.state.Commit) {
			if !yield(taskqueue.Write{Key: taskqueue.LedgerKey(e.Commit), Value: e.Events}, err) || err != nil {
				return
			}
		}
	}
}

// addModel adds the latest set of checkpoints to the backup, and replaces the state of the job by the state at the cut of that set.
// It opens the files of the set: in a directory, they remain readable if a server deletes the set before they are copied.
func (b *Backup) addModel(ctx context.Context, folder checkpoint.Store) (checkpoint.Members, error) {
	refuse := func(format string, args ...any) error {
		return usage.Errorf("--checkpoint-dir %s: "+format, append([]any{folder.Place}, args...)...)
	}
	if b.set == nil {
		return nil, refuse("job %q has no set of checkpoints yet: try again when master status names one, or leave the parameters out", b.head.Job)
	}
	set, err := checkpoint.ParseSet(b.set)
	if err != nil {
		return nil, err
	}
	switch text, err := folder.ReadText(ctx, set.Number); {
	case errors.Is(err, checkpoint.ErrUnavailable):
		return nil, err
	case err != nil:
		return nil, refuse("expected the directory of the job's parameter servers, with its latest set, %d: %w", set.Number, err)
	case !bytes.Equal(text, b.set):
		return nil, refuse("expected the directory of the job's parameter servers, with its latest set, %d; found another set of that number", set.Number)
	}
	members, err := folder.Members(ctx, set)
	if err != nil {
		return nil, refuse("%w", err)
	}
	if err := b.goTo(ctx, folder, set); err != nil {
		return nil, errors.Join(refuse("%w", err), members.Close())
	}
	return members, nil
}

// goTo replaces the state in the backup by the state of the job at the cut of a set.
func (b *Backup) goTo(ctx context.Context, folder checkpoint.Store, set *checkpoint.Set) error {
	text, err := folder.ReadState(ctx, set)
	if err != nil {
		return err
	}
	file, err := snapshot.Parse(set.State.Name, text)
	if err != nil {
		return err
	}
	values := map[string][]byte{psDesiredKey: b.values[psDesiredKey], pscontrol.LatestSetKey: b.set}
	if secret := b.values[taskqueue.SecretKey]; secret != nil {
		values[taskqueue.SecretKey] = secret
	}
	if strategy := b.values[taskqueue.StrategyFileKey]; strategy != nil {
		values[taskqueue.StrategyFileKey] = strategy
	}
	for item, err := range file.Items() {
		if err != nil {
			return err
		}
		values[item.Key] = item.Value
	}
	//guard:snapshot-has-rounds-of-the-cut
	records, _, err := rounds.RecordsAt(values[evaluation.Key], b.values)
	if err != nil {
		return err
	}
	for _, record := range records {
		values[record.Key] = record.Value
	}
	var at taskqueue.Snapshot
	if err := etcdstore.Decode(values[taskqueue.StateKey], &at, committer.MaxStoredState); err != nil {
		return err
	}
	tables := func(s *taskqueue.Snapshot) (ids []string) {
		for _, d := range s.Sets {
			ids = append(ids, d.ReportID)
		}
		return ids
	}
	if slices.Equal(tables(&at), tables(&b.state)) {
		for key := range values { // the tables in etcd are the tables of the set
			if strings.HasPrefix(key, snapshot.DatasetPrefix) {
				delete(values, key)
			}
		}
	}
	if !bytes.Equal(at.JobID, b.state.JobID) {
		b.reader = nil // the job was resumed from that set, and its ledger begins there
	}
	b.values, b.state = values, at
	head := file.Head
	head.Revision, head.TakenAt, head.TakenBy, head.Ledger, head.Model = b.head.Revision, b.head.TakenAt, b.head.TakenBy, b.reader != nil, true
	b.head = head
	return nil
}
