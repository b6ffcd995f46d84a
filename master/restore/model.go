package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"trainmaster/internal/usage"
	"trainmaster/master/pscontrol"
	"trainmaster/master/snapshot"
	"trainmaster/pserver/checkpoint"
)

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

// PutModel writes the set of a snapshot to a directory, and returns the set and its text.
func PutModel(ctx context.Context, file *snapshot.File, folder checkpoint.Store, progress io.Writer) (set *checkpoint.Set, text []byte, err error) {
	for item, err := range file.Items() {
		if err != nil {
			return nil, nil, err
		}
		if item.Key == pscontrol.LatestSetKey {
			text = item.Value
		}
	}
	if set, err = checkpoint.ParseSet(text); err != nil {
		return nil, nil, fmt.Errorf("%w: %q: set of checkpoints: %w", snapshot.ErrDamaged, file.Name, err)
	}
	arrival, done, err := folder.Arrive(ctx, file.Digest, text)
	if errors.Is(err, checkpoint.ErrOccupied) {
		return nil, nil, usage.Errorf("--checkpoint-dir: %w", err)
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
