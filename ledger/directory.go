package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"trainmaster/internal/failpoint"
)

// Archive keeps sealed files.
type Archive interface {
	// Read returns the first limit bytes of a file, or all of it. A missing one is
	// fs.ErrNotExist.
	Read(ctx context.Context, name string, limit int64) ([]byte, error)
	// Write makes a file that is whole and durable once it returns. The same bytes may be
	// written again.
	Write(ctx context.Context, name string, file []byte) error
	// Remove removes the files that exist.
	Remove(ctx context.Context, names []string) error
	// List returns the names of all files, temporary ones too.
	List(ctx context.Context) ([]string, error)
	// Path is where a file is, for messages.
	Path(name string) string
}

// Directory is an archive on a disk. All masters of the job must see the same directory.
type Directory struct {
	Dir string

	points failpoint.Hook
}

const (
	idFile    = "id"
	temporary = ".tmp"
)

// Path is where a file is.
func (f Directory) Path(name string) string { return filepath.Join(f.Dir, name) }

// Read returns the first limit bytes of a file.
func (f Directory) Read(_ context.Context, name string, limit int64) ([]byte, error) {
	file, err := os.Open(f.Path(name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, limit))
}

// ID returns the id of the job whose ledger is in the directory; "": there is none.
func (f Directory) ID() (string, error) {
	id, err := os.ReadFile(f.Path(idFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the id of the ledger directory: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

// setAside renames the directory of the job with an id to NAME-ID and returns the new path. It fails if the new path exists.
func (f Directory) setAside(id string) (string, error) {
	aside := filepath.Clean(f.Dir) + "-" + id
	if err := os.Rename(f.Dir, aside); err != nil {
		return "", fmt.Errorf("move the ledger of the replaced job: %w", err)
	}
	return aside, Directory{Dir: filepath.Dir(aside)}.sync()
}

// Claim makes the directory, if it is missing, and writes the id of the job into it.
func (f Directory) Claim(ctx context.Context, id string) error {
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return fmt.Errorf("create the ledger directory: %w", err)
	}
	return f.Write(ctx, idFile, []byte(id+"\n"))
}

// Write writes a temporary file, makes it durable, and gives it its name.
func (f Directory) Write(_ context.Context, name string, file []byte) (err error) {
	temp, err := os.CreateTemp(f.Dir, name+".*"+temporary)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && !errors.Is(err, failpoint.ErrCrash) {
			_ = os.Remove(temp.Name()) // otherwise the next leader removes it
		}
	}()
	_, err = temp.Write(file)
	if err == nil {
		err = f.points.Reach("file written")
	}
	if err == nil {
		err = temp.Sync()
	}
	if closeErr := temp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = f.points.Reach("file synced")
	}
	if err == nil {
		err = os.Rename(temp.Name(), f.Path(name))
	}
	if err == nil {
		err = f.points.Reach("file renamed")
	}
	if err == nil {
		err = f.sync()
	}
	if err != nil {
		return fmt.Errorf("write sealed file: %w", err)
	}
	return f.points.Reach("folder synced")
}

// sync makes the names in the directory durable.
func (f Directory) sync() error {
	dir, err := os.Open(f.Dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Remove removes files.
func (f Directory) Remove(_ context.Context, names []string) error {
	for _, name := range names {
		if err := os.Remove(f.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove sealed file: %w", err)
		}
	}
	return nil
}

// List returns the names of all files.
func (f Directory) List(context.Context) ([]string, error) {
	entries, err := os.ReadDir(f.Dir)
	if err != nil {
		return nil, fmt.Errorf("list the ledger directory: %w", err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}
