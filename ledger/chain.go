package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"slices"
)

// sealedFile is a file that the head leads to.
type sealedFile struct {
	name string
	Header
	size int64 // 0: not known yet
}

const headerRead = 64 << 10 // enough for most

// chain returns the files from the file with commit from to the newest file, in their order.
func chain(ctx context.Context, archive Archive, head Head, from uint64) ([]sealedFile, error) {
	var files []sealedFile
	end := head.Through
	for name := head.File; ; name = files[len(files)-1].Before {
		h, err := readHeader(ctx, archive, name)
		if err != nil {
			return nil, err
		}
		if h.ID != head.ID || h.Last != end {
			return nil, damage(archive.Path(name), fixedBytes, "expected a file of job %s that ends at commit %d, found one of job %s that ends at %d", head.ID, end, h.ID, h.Last)
		}
		files = append(files, sealedFile{name: name, Header: h})
		if h.First <= from || h.First <= head.From {
			break
		}
		end = h.First - 1
	}
	slices.Reverse(files)
	return files, nil
}

func readHeader(ctx context.Context, archive Archive, name string) (Header, error) {
	begin, err := read(ctx, archive, name, headerRead)
	if err != nil {
		return Header{}, err
	}
	size, err := headerBytes(archive.Path(name), begin)
	if err == nil && size > len(begin) {
		begin, err = read(ctx, archive, name, int64(size))
	}
	if err != nil {
		return Header{}, err
	}
	h, _, err := DecodeHeader(archive.Path(name), begin)
	return h, err
}

func read(ctx context.Context, archive Archive, name string, limit int64) ([]byte, error) {
	file, err := archive.Read(ctx, name, limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damage(archive.Path(name), 0, "expected the file, which the ledger goes through: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read sealed file %s: %w", archive.Path(name), err)
	}
	return file, nil
}

// entries reads a file. digest is the digest of its bytes, if it is known.
func (f sealedFile) entries(ctx context.Context, archive Archive, digest string) (iter.Seq2[Entry, error], error) {
	file, err := read(ctx, archive, f.name, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	_, entries, err := Decode(archive.Path(f.name), file)
	if err != nil {
		return nil, err
	}
	if found := digestOf(file); digest != "" && found != digest || fileName(f.First, f.Last, found) != f.name {
		for _, err := range entries { // where it is damaged, if that can be seen
			if err != nil {
				return nil, err
			}
		}
		return nil, damage(archive.Path(f.name), 0, "the file is whole, but another one: its SHA-256 is %s", found)
	}
	return entries, nil
}
