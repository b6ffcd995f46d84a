// Package parts stores the parts of a prediction, one for each task, in a directory or in a bucket of an object store.
//
// A part appears whole, under its name, or not at all: it is written under a temporary name, or uploaded, and gets its name only if no part
// has the name. If a part exists, a write succeeds and changes nothing: the part is of another attempt of the same task. A process that is
// killed leaves at most a file whose name begins with a dot.
package parts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
)

// Store stores parts.
type Store struct {
	where string
	dir   string           // of files; "": in place
	place checkpoint.Place // a bucket
}

// Open opens a directory, which it creates, or scheme://bucket/prefix of an object store.
func Open(where string) (*Store, error) {
	if storage.IsURL(where) {
		place, err := storage.Open(where)
		return &Store{where: where, place: place}, err
	}
	if err := os.MkdirAll(where, 0o755); err != nil {
		return nil, fmt.Errorf("%q: expected a directory that can be written: %w", where, err)
	}
	probe, err := os.CreateTemp(where, temporary)
	if err != nil {
		return nil, fmt.Errorf("%q: expected a directory that can be written: %w", where, err)
	}
	return &Store{where: where, dir: where}, errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// temporary is the pattern of the name of a file that is not whole.
const temporary = ".part-*"

// Close releases the connections.
func (s *Store) Close() error {
	if s.place == nil {
		return nil
	}
	return s.place.Close()
}

// jobFile has the id of the job whose parts are in a store.
const jobFile = "JOB"

// ErrOtherJob is returned if a store has parts of another job.
var ErrOtherJob = errors.New("parts of another job")

// Claim claims the store for a job. All trainers of a job claim the same id.
func (s *Store) Claim(ctx context.Context, id string) error {
	if err := s.Write(ctx, jobFile, []byte(id+"\n")); err != nil {
		return err
	}
	found, err := s.read(ctx, jobFile)
	if err != nil {
		return fmt.Errorf("read %s of %s: %w", jobFile, s.where, err)
	}
	//guard:parts-of-one-job
	if found != id+"\n" {
		return fmt.Errorf("%w: %s: expected the job %s in %s, found %q: choose an empty directory or prefix", ErrOtherJob, s.where, id, jobFile, found)
	}
	return nil
}

// Write stores a part, unless there is one with the name.
func (s *Store) Write(ctx context.Context, name string, content []byte) error {
	var err error
	if s.place == nil {
		err = s.writeFile(name, content)
	} else {
		err = s.upload(ctx, name, content)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write %s of %s: %w", name, s.where, err)
	}
	return nil
}

func (s *Store) writeFile(name string, content []byte) (err error) {
	f, err := os.CreateTemp(s.dir, temporary)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // the part has another name
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	//guard:part-created-if-absent
	err = os.Link(f.Name(), filepath.Join(s.dir, name))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return checkpoint.Disk(s.dir).Sync("") // also of an existing part: its writer may have stopped before this
}

func (s *Store) upload(ctx context.Context, name string, content []byte) error {
	p, err := s.place.Create(ctx, name, int64(len(content)), checkpoint.Final)
	if err != nil {
		return err
	}
	defer p.Close()
	if _, err := p.Write(content); err != nil {
		return err
	}
	return p.Publish()
}

func (s *Store) read(ctx context.Context, name string) (string, error) {
	place := s.place
	if place == nil {
		place = checkpoint.Disk(s.dir)
	}
	f, err := place.Open(ctx, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	return string(content), err
}
