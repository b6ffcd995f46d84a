package restore

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

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

// UseSet names a set in etcd, after a check of all its files. If the set has a cut of the tasks, UseSet replaces the job with its state at
// that cut. Then no process of the job may run.
func UseSet(ctx context.Context, store *etcdstore.Store, name string, folder checkpoint.Store, number uint64) error {
	pointer, err := store.ReadPointer(ctx)
	if err != nil {
		return err
	}
	values, _, err := store.ReadAll(ctx, jobKey, taskqueue.StateKey)
	if err != nil {
		return err
	}
	if values[jobKey] == nil {
		return ErrNoJob
	}
	job, err := etcdstore.ParseJob(values[jobKey])
	if err != nil {
		return err
	}
	set, text, err := wholeSet(ctx, folder, number)
	if err != nil {
		return err
	}
	if set.Job != "" && set.Job != job.Name {
		return usage.Errorf("set %d: expected job %q, found job %q", number, job.Name, set.Job)
	}
	jobID, hasEnded := "", false
	if values[taskqueue.StateKey] != nil { // an interrupted cut leaves no state
		var state struct {
			JobID  []byte
			Status taskqueue.Status
		}
		if err := etcdstore.Decode(values[taskqueue.StateKey], &state, committer.MaxStoredState); err != nil {
			return err
		}
		jobID, hasEnded = hex.EncodeToString(state.JobID), state.Status == taskqueue.Ended || state.Status == taskqueue.Failed
	}
	var position pscontrol.Position
	if set.Position != nil {
		if err := json.Unmarshal(set.Position, &position); err != nil {
			return fmt.Errorf("set %d: position: %w", number, err)
		}
	}
	switch {
	//guard:ended-job-returns-to-its-cut
	case position.Step != 0 && (hasEnded || !bytes.Equal(text, pointer.Set)):
		err = useCut(ctx, name, store, folder, &Plan{Set: set, Text: text}, pointer, jobID)
	default: // the tasks are at the cut, or have none
		err = store.MovePointer(ctx, pointer, text)
	}
	if errors.Is(err, etcdstore.ErrJobRuns) {
		return fmt.Errorf("set %d: expected no running master or parameter server, since the tasks go back with the parameters (--update-mode sync): stop all of them, and give the command again", number)
	}
	return err
}

// wholeSet reads a set, all of whose files are as its manifests say.
func wholeSet(ctx context.Context, folder checkpoint.Store, number uint64) (*checkpoint.Set, []byte, error) {
	set, err := folder.ReadSet(ctx, number)
	if err != nil {
		return nil, nil, err
	}
	text, err := folder.ReadText(ctx, number)
	if err != nil {
		return nil, nil, err
	}
	if parsed, err := checkpoint.ParseSet(text); err != nil || parsed.Number != number {
		return nil, nil, fmt.Errorf("set %d: its file has changed while it was read", number)
	}
	if _, err := folder.Open(ctx, set); err != nil {
		return nil, nil, fmt.Errorf("set %d: expected a complete set: %w", number, err)
	}
	return set, text, nil
}

// useCut replaces the job with its state at the cut of a set.
func useCut(ctx context.Context, name string, store *etcdstore.Store, folder checkpoint.Store, r *Plan, pointer etcdstore.Pointer, jobID string) error {
	state, err := folder.ReadState(ctx, r.Set)
	if err != nil {
		return err
	}
	if r.File, err = snapshot.Parse(fmt.Sprintf("%s/%s/%s", folder.Place, checkpoint.SetsDir, r.Set.State.Name), state); err != nil {
		return err
	}
	keys, err := store.Keys(ctx, taskqueue.LedgerPrefix)
	if err != nil {
		return err
	}
	r.Ledger, r.replaces = len(keys) > 0, &pointer
	if r.replaced, err = replacedBefore(ctx, store); err != nil {
		return err
	}
	if jobID != "" && !slices.Contains(r.replaced, jobID) {
		r.replaced = append(r.replaced, jobID)
	}
	if err := r.keepRounds(ctx, store); err != nil {
		return err
	}
	_, err = r.Restore(ctx, store, name)
	return err
}

// keepRounds keeps the records of evaluation rounds that the job had at the cut.
func (r *Plan) keepRounds(ctx context.Context, store *etcdstore.Store) error {
	records, _, err := store.Prefixed(ctx, rounds.RecordPrefix)
	if err != nil {
		return err
	}
	var state []byte
	for item, err := range r.File.Items() {
		if err != nil {
			return err
		}
		if item.Key == evaluation.Key {
			state = item.Value
		}
	}
	r.rounds, r.round, err = rounds.RecordsAt(state, records)
	return err
}

// replacedBefore returns the ids of the jobs that this one has replaced. No master may have moved their ledgers yet.
func replacedBefore(ctx context.Context, store *etcdstore.Store) ([]string, error) {
	value, _, err := store.Value(ctx, ledger.BeginKey)
	if err != nil || value == nil {
		return nil, err
	}
	var begin ledger.Begin
	if err := json.Unmarshal(value, &begin); err != nil {
		return nil, fmt.Errorf("%s: expected JSON, found %.80q: %w", ledger.BeginKey, value, err)
	}
	return begin.Replaced, nil
}
