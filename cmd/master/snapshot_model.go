package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/master"
	"trainmaster/master/snapshot"
	"trainmaster/pserver/checkpoint"
	"trainmaster/taskqueue"
)

// addModel adds the latest set of checkpoints to the backup, and replaces the state of the job by the state at the cut of that set.
// It opens the files of the set: in a directory, they remain readable if a server deletes the set before they are copied.
func (b *backup) addModel(ctx context.Context, folder checkpoint.Store) (checkpoint.Members, error) {
	refuse := func(format string, args ...any) error {
		return cli.UsageErrorf("--checkpoint-dir %s: "+format, append([]any{folder.Place}, args...)...)
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
func (b *backup) goTo(ctx context.Context, folder checkpoint.Store, set *checkpoint.Set) error {
	text, err := folder.ReadState(ctx, set)
	if err != nil {
		return err
	}
	file, err := snapshot.Parse(set.State.Name, text)
	if err != nil {
		return err
	}
	values := map[string][]byte{psDesiredKey: b.values[psDesiredKey], master.LatestSetKey: b.set}
	if secret := b.values[taskqueue.SecretKey]; secret != nil {
		values[taskqueue.SecretKey] = secret
	}
	for item, err := range file.Items() {
		if err != nil {
			return err
		}
		values[item.Key] = item.Value
	}
	var at taskqueue.Snapshot
	if err := etcdstore.Decode(values[taskqueue.StateKey], &at, admin.MaxStateDecoded); err != nil {
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
		b.ledger = nil // the job was resumed from that set, and its ledger begins there
	}
	b.values, b.state = values, at
	head := file.Head
	head.Revision, head.TakenAt, head.TakenBy, head.Ledger, head.Model = b.head.Revision, b.head.TakenAt, b.head.TakenBy, b.ledger != nil, true
	b.head = head
	return nil
}

// filesOf yields the files of a set for a snapshot.
func filesOf(members checkpoint.Members, seen *transfer) iter.Seq2[snapshot.Member, error] {
	return func(yield func(snapshot.Member, error) bool) {
		for _, m := range members {
			if !yield(snapshot.Member{Path: m.Path, Size: m.Size, Data: io.TeeReader(m, seen)}, nil) {
				return
			}
		}
	}
}

// putModel writes the set of a snapshot to a directory, and returns the set and its text.
func putModel(ctx context.Context, file *snapshot.File, folder checkpoint.Store, progress io.Writer) (set *checkpoint.Set, text []byte, err error) {
	for item, err := range file.Items() {
		if err != nil {
			return nil, nil, err
		}
		if item.Key == master.LatestSetKey {
			text = item.Value
		}
	}
	if set, err = checkpoint.ParseSet(text); err != nil {
		return nil, nil, fmt.Errorf("%w: %q: set of checkpoints: %w", snapshot.ErrDamaged, file.Name, err)
	}
	arrival, done, err := folder.Arrive(ctx, file.Digest, text)
	if errors.Is(err, checkpoint.ErrOccupied) {
		return nil, nil, cli.UsageErrorf("--checkpoint-dir: %w", err)
	}
	if err != nil || done {
		return set, text, err
	}
	seen := newTransfer(progress, "parameters restored", file.Size)
	for m, err := range file.Files() {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = arrival.Put(ctx, m.Path, m.Size, io.TeeReader(m.Data, seen))
		}
		if err != nil {
			return nil, nil, fmt.Errorf("restore %s: %w", m.Path, err)
		}
	}
	return set, text, arrival.End(ctx, set.Number)
}

// transfer says from time to time how much of something large went by.
type transfer struct {
	out   io.Writer
	what  string
	total int64
	done  int64
	said  time.Time
}

const transferEvery = 2 * time.Second

func newTransfer(out io.Writer, what string, total int64) *transfer {
	return &transfer{out: out, what: what, total: total, said: time.Now()}
}

func (t *transfer) Write(p []byte) (int, error) {
	t.done += int64(len(p))
	if time.Since(t.said) >= transferEvery {
		t.said = time.Now()
		fmt.Fprintf(t.out, "%s: %d of %d MiB\n", t.what, t.done>>20, t.total>>20)
	}
	return len(p), nil
}
