package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"path"
	"time"

	"trainmaster/internal/safetensors"
)

// file is an unfinished file with its manifest entry.
type file struct {
	Pending
	name string
	sum  hash.Hash
	size int64

	ctx    context.Context                     //nolint:containedctx // a file is written by one call, and not every place looks at it
	worked func(bytes int, took time.Duration) // see Writer.Worked
}

func createFile(ctx context.Context, p Place, dir, name string, size int64, kind Kind) (*file, error) {
	out, err := p.Create(ctx, path.Join(dir, name), size, kind)
	if err != nil {
		return nil, err
	}
	return &file{Pending: out, name: name, sum: sha256.New(), ctx: ctx}, nil
}

// slice is the number of bytes to write and sum at a time: few enough to stay in a fast cache.
const slice = 256 << 10

func (f *file) Write(p []byte) (n int, err error) {
	for err == nil && n < len(p) {
		if f.ctx.Err() != nil {
			err = context.Cause(f.ctx)
			break
		}
		began := time.Now()
		var wrote int
		wrote, err = f.Pending.Write(p[n:min(n+slice, len(p))])
		f.sum.Write(p[n : n+wrote])
		n += wrote
		if f.worked != nil {
			f.worked(wrote, time.Since(began))
		}
	}
	f.size += int64(n)
	return n, err
}

// entry publishes the file. The caller syncs the directory.
func (f *file) entry() (Entry, error) {
	if err := f.Publish(); err != nil {
		return Entry{}, err
	}
	return Entry{f.name, f.size, hex.EncodeToString(f.sum.Sum(nil))}, nil
}

// writeFile writes a small file.
func writeFile(ctx context.Context, p Place, dir, name string, data []byte, kind Kind) error {
	f, err := createFile(ctx, p, dir, name, int64(len(data)), kind)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Publish(); err != nil {
		return err
	}
	return p.Sync(dir)
}

// readFile reads a small file.
func readFile(ctx context.Context, p Place, name string) ([]byte, error) {
	f, err := p.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
}

// files opens the files of one checkpoint, with the context of its Open.
type files func(name string) (Object, error)

// tensors opens a safetensors file of the checkpoint; close it after use.
func (open files) tensors(name string) (*safetensors.File, io.Closer, error) {
	file, err := open(name)
	if err != nil {
		return nil, nil, err
	}
	tensors, err := safetensors.NewFile(file, file.Size())
	if err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return tensors, file, nil
}

// all reads a small safetensors file of the checkpoint.
func (open files) all(name string) ([]safetensors.Tensor, error) {
	file, closer, err := open.tensors(name)
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	list, err := file.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return list, nil
}

// verify compares the file with its entry in the manifest.
func (e Entry) verify(open files) error {
	if path.Base(e.Name) != e.Name {
		return fmt.Errorf("%s names %q: expected a file in the same directory", ManifestFile, e.Name)
	}
	f, err := open(e.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, io.NewSectionReader(f, 0, f.Size()))
	if err != nil {
		return fmt.Errorf("read %s: %w", e.Name, err)
	}
	//guard:checkpoint-digest
	if got := hex.EncodeToString(sum.Sum(nil)); n != e.Size || got != e.SHA256 {
		return fmt.Errorf("%s has %d bytes and a SHA-256 that starts with %.12s, the manifest says %d and %.12s", e.Name, n, got, e.Size, e.SHA256)
	}
	return nil
}
