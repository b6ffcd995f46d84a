package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"trainmaster/internal/failpoint"
)

const startsFile = "STARTS"

// ErrSuperseded is returned when a later start of the shard owns the directory.
var ErrSuperseded = errors.New("checkpoint directory is owned by a later start of this shard")

// Folder is the directory with the checkpoints of one shard.
type Folder struct {
	place Place
	name  string // in place
	// Points is called after each change of the stored files.
	Points failpoint.Hook
}

func (f Folder) path(g Generation) string { return path.Join(f.name, g.String()) }

// where names a checkpoint in messages.
func (f Folder) where(g Generation) string { return f.place.String() + "/" + f.path(g) }

// String names the directory in messages.
func (f Folder) String() string { return f.place.String() + "/" + f.name }

// Prepare creates the directory where a place needs one.
func (f Folder) Prepare() error { return f.place.Prepare(f.name) }

// Generations lists all checkpoints, complete or not, in descending order.
func (f Folder) Generations(ctx context.Context) ([]Generation, error) {
	names, err := f.place.List(ctx, f.name)
	if err != nil {
		return nil, err
	}
	var list []Generation
	for _, name := range names {
		if g, ok := parseGeneration(name); ok {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b Generation) int { return b.Compare(a) })
	return list, nil
}

// Whole reports whether a checkpoint was finished; its files may be damaged. An unreadable manifest exists.
func (f Folder) Whole(ctx context.Context, g Generation) (bool, error) {
	file, err := f.place.Open(ctx, path.Join(f.path(g), ManifestFile))
	switch {
	case err == nil:
		return true, file.Close()
	case errors.Is(err, ErrUnavailable):
		return false, err
	}
	return !errors.Is(err, fs.ErrNotExist), nil
}

// CountStart increments the stored number of starts and returns it.
func (f Folder) CountStart(ctx context.Context) (uint64, error) {
	starts, err := f.starts(ctx)
	if err != nil {
		return 0, err
	}
	list, err := f.Generations(ctx)
	if err != nil {
		return 0, err
	}
	if len(list) > 0 {
		starts = max(starts, list[0].Start) // the file may be lost, and they are not
	}
	starts++
	return starts, writeFile(ctx, f.place, f.name, startsFile, fmt.Appendln(nil, starts), Replaced)
}

func (f Folder) starts(ctx context.Context) (uint64, error) {
	text, err := readFile(ctx, f.place, path.Join(f.name, startsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	starts, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s/%s holds %q: expected the number of starts; if the file is damaged, write a number greater than the first number of all checkpoint directories", f, startsFile, text)
	}
	return starts, nil
}

// CheckOwner returns [ErrSuperseded] if a later start of the shard owns the directory.
func (f Folder) CheckOwner(ctx context.Context, start uint64) error {
	starts, err := f.starts(ctx)
	if err != nil {
		return err
	}
	if starts != start { //guard:checkpoint-owner
		return fmt.Errorf("%w: it counts %d starts, this is the %dth", ErrSuperseded, starts, start)
	}
	return nil
}

// Remove removes a checkpoint, the manifest first: a partly removed checkpoint is then not
// a checkpoint.
func (f Folder) Remove(ctx context.Context, g Generation) error {
	dir := f.path(g)
	whole, err := f.Whole(ctx, g)
	if err != nil {
		return err
	}
	if whole {
		if err := f.place.Remove(ctx, path.Join(dir, ManifestFile)); err != nil {
			return err
		}
		if err := f.place.Sync(dir); err != nil {
			return err
		}
		f.Points.Observe("old manifest removed")
	}
	if err := f.place.RemoveAll(ctx, dir); err != nil {
		return err
	}
	f.Points.Observe("old directory removed")
	return nil
}

// removeBut removes checkpoints of a list in descending order. It keeps checkpoints for which stays is true.
func (f Folder) removeBut(ctx context.Context, list []Generation, stays func(Generation) (bool, error)) error {
	for _, g := range list {
		stay, err := stays(g)
		if err != nil {
			return err
		}
		if stay {
			continue
		}
		if err := f.Remove(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// PruneTo removes checkpoints that are older than the newest in keep. It keeps the checkpoints in keep.
func (f Folder) PruneTo(ctx context.Context, keep []Generation) error {
	if len(keep) == 0 {
		return nil
	}
	newest := slices.MaxFunc(keep, Generation.Compare)
	list, err := f.Generations(ctx)
	if err != nil {
		return err
	}
	return f.removeBut(ctx, list, func(g Generation) (bool, error) { return g.Compare(newest) >= 0 || slices.Contains(keep, g), nil })
}

// Discard removes checkpoints of a job for sets that are newer than its latest set, and unfinished checkpoints. It keeps the
// checkpoints of later starts, which a successor may be writing. It returns the removed checkpoints.
func (f Folder) Discard(ctx context.Context, jobID string, latest, start uint64) (removed []Generation, err error) {
	list, err := f.Generations(ctx)
	if err != nil {
		return nil, err
	}
	failed := func(g Generation) (bool, error) {
		if g.Start > start { //guard:successor-checkpoints-kept
			return false, nil
		}
		whole, err := f.Whole(ctx, g)
		if err != nil || !whole {
			return !whole, err
		}
		m, err := f.Manifest(ctx, g)
		if errors.Is(err, ErrUnavailable) {
			return false, err
		}
		//guard:discard-own-sets-only
		return err == nil && m.JobID == jobID && m.Set > latest, nil
	}
	err = f.removeBut(ctx, list, func(g Generation) (bool, error) {
		gone, err := failed(g)
		if gone && err == nil {
			removed = append(removed, g)
		}
		return !gone, err
	})
	return removed, err
}
