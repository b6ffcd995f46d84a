package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
)

// file appears under its name only when it is whole and on the disk.
type file struct {
	*os.File
	path string
	sum  hash.Hash
	size int64
}

const temporary = ".tmp"

func createFile(dir, name string) (*file, error) {
	path := filepath.Join(dir, name)
	f, err := os.Create(path + temporary)
	if err != nil {
		return nil, err
	}
	return &file{File: f, path: path, sum: sha256.New()}, nil
}

func (f *file) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.sum.Write(p[:n])
	f.size += int64(n)
	return n, err
}

// publish syncs and renames the file; the folder is the caller's to sync.
func (f *file) publish() (Entry, error) {
	if err := f.Sync(); err != nil {
		return Entry{}, err
	}
	if err := f.Close(); err != nil {
		return Entry{}, err
	}
	if err := os.Rename(f.path+temporary, f.path); err != nil {
		return Entry{}, err
	}
	return Entry{filepath.Base(f.path), f.size, hex.EncodeToString(f.sum.Sum(nil))}, nil
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// verify compares the file in dir with what the manifest says of it.
func (e Entry) verify(dir string) error {
	if filepath.Base(e.Name) != e.Name {
		return fmt.Errorf("%s names %q: expected a file beside it", ManifestFile, e.Name)
	}
	f, err := os.Open(filepath.Join(dir, e.Name))
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return fmt.Errorf("read %s: %w", e.Name, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != e.Size || got != e.SHA256 {
		return fmt.Errorf("%s has %d bytes and a SHA-256 that starts with %.12s, the manifest says %d and %.12s", e.Name, n, got, e.Size, e.SHA256)
	}
	return nil
}
