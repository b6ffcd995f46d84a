package modelfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"

	"trainmaster/internal/filekind"
	"trainmaster/internal/usage"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
)

// Source is a directory or bucket of checkpoints, or one set in it.
type Source struct {
	checkpoint.Store
	one    func(context.Context) (*checkpoint.Set, error) // nil: DIR
	folder string                                         // DIR on the disk; "": a SET or a bucket
}

// openSource opens DIR or SET; close the place after use.
func openSource(arg string) (Source, error) {
	if storage.IsURL(arg) {
		return openBucket(arg)
	}
	stat, err := os.Stat(arg)
	if err != nil {
		return Source{}, fmt.Errorf("%q: a directory of checkpoints, or the file of a set in it: %w", arg, cmp.Or(filekind.CheckFolder(arg), err))
	}
	if stat.IsDir() {
		return Source{Store: checkpoint.Store{Place: checkpoint.Disk(arg)}, folder: arg}, nil
	}
	if _, ok := checkpoint.SetNumber(filepath.Base(arg)); !ok {
		return Source{}, usage.Errorf("%s: expected a directory of checkpoints, a set in it, sets/<number>.json, or (diff only) a .safetensors file", arg)
	}
	return Source{Store: checkpoint.Store{Place: checkpoint.Disk(filepath.Dir(filepath.Dir(arg)))}, one: func(context.Context) (*checkpoint.Set, error) {
		text, err := os.ReadFile(arg)
		if err != nil {
			return nil, err
		}
		set, err := checkpoint.ParseSet(text)
		if err != nil {
			return nil, fmt.Errorf("%s: expected the file of a set: %w", arg, err)
		}
		return set, nil
	}}, nil
}

// openBucket opens the URL of a DIR or a SET.
func openBucket(arg string) (c Source, err error) {
	u, err := url.Parse(arg)
	if err != nil {
		return c, usage.Errorf("%w", err)
	}
	if dir := path.Dir(u.Path); path.Base(dir) == checkpoint.SetsDir {
		number, ok := checkpoint.SetNumber(path.Base(u.Path))
		if !ok {
			return c, usage.Errorf("%s: expected the file of a set, sets/<number>.json with 8 digits", arg)
		}
		u.Path = path.Dir(dir)
		c.one = func(ctx context.Context) (*checkpoint.Set, error) { return c.ReadSet(ctx, number) }
	}
	if c.Place, err = storage.Open(u.String()); err != nil {
		return c, usage.Errorf("%w", err)
	}
	return c, nil
}

// newest is the set that DIR or SET stands for.
func (c Source) newest(ctx context.Context) (*checkpoint.Set, error) {
	if c.one != nil {
		return c.one(ctx)
	}
	set, err := c.Newest(ctx)
	if errors.Is(err, checkpoint.ErrNoSet) {
		err = fmt.Errorf("%w: expected %s/<number>.json in it%s", err, checkpoint.SetsDir, c.below())
	}
	return set, err
}

// below names a directory in DIR that has sets, as checkpoints does in the directory of a run.
func (c Source) below() string {
	if c.folder == "" {
		return ""
	}
	sets, err := fs.Glob(os.DirFS(c.folder), "*/"+checkpoint.SetsDir+"/*.json")
	if err != nil || len(sets) == 0 {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", filepath.Join(c.folder, path.Dir(path.Dir(sets[0]))))
}

// OpenSet opens the checkpoints of the set that DIR or SET stands for; close the place after use.
func OpenSet(ctx context.Context, arg string) (c Source, set *checkpoint.Set, parts []*checkpoint.Checkpoint, err error) {
	if c, err = openSource(arg); err != nil {
		return c, nil, nil, err
	}
	if set, err = c.newest(ctx); err == nil {
		if parts, err = c.Open(ctx, set); err != nil && !errors.Is(err, checkpoint.ErrUnavailable) {
			err = fmt.Errorf("the set is damaged, or not complete; name an older one, DIR/sets/<number>.json: %w", err)
		}
	}
	if err != nil {
		return c, nil, nil, errors.Join(err, c.Place.Close())
	}
	return c, set, parts, nil
}
