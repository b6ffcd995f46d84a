package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Disk is a directory as a [Place]. It ignores contexts: a file system call cannot be canceled.
type Disk string

func (d Disk) String() string { return string(d) }

// Close implements [Place].
func (d Disk) Close() error { return nil }

func (d Disk) path(name string) string { return filepath.Join(string(d), filepath.FromSlash(name)) }

// List implements [Place].
func (d Disk) List(_ context.Context, dir string) ([]string, error) {
	entries, err := os.ReadDir(d.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// diskFile is an [Object].
type diskFile struct {
	*os.File
	size int64
}

func (f diskFile) Size() int64 { return f.size }

// Open implements [Place].
func (d Disk) Open(_ context.Context, name string) (Object, error) {
	f, err := os.Open(d.path(name))
	if err != nil {
		return nil, err
	}
	stat, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return diskFile{f, stat.Size()}, nil
}

// Prepare implements [Place].
func (d Disk) Prepare(dir string) error { return os.MkdirAll(d.path(dir), 0o755) }

// Claim implements [Place].
func (d Disk) Claim(_ context.Context, dir string) error { return os.Mkdir(d.path(dir), 0o755) }

// temporary is the suffix of the name of an unpublished file.
//
//guard:temporary-file-name
const temporary = ".tmp"

type pendingFile struct {
	*os.File
	path string
}

// Create implements [Place].
func (d Disk) Create(_ context.Context, name string, _ int64, _ Kind) (Pending, error) {
	f, err := os.Create(d.path(name) + temporary)
	if err != nil {
		return nil, err
	}
	return pendingFile{f, d.path(name)}, nil
}

// Publish syncs and renames the file. The caller syncs the directory with [Disk.Sync].
func (f pendingFile) Publish() error {
	if err := f.File.Sync(); err != nil {
		return err
	}
	if err := f.File.Close(); err != nil {
		return err
	}
	return os.Rename(f.path+temporary, f.path)
}

// Sync implements [Place].
func (d Disk) Sync(dir string) error {
	f, err := os.Open(d.path(dir))
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Remove implements [Place].
func (d Disk) Remove(_ context.Context, name string) error {
	if err := os.Remove(d.path(name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// RemoveAll implements [Place].
func (d Disk) RemoveAll(_ context.Context, dir string) error { return os.RemoveAll(d.path(dir)) }
