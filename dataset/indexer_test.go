package dataset_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/dataset"
	"trainmaster/recordio"
)

func TestIndexer(t *testing.T) {
	dir := folder(t)
	listing := list(t, dataset.Source{}, under(dir, "*-*")...)
	var last [2]int
	x := dataset.Indexer{Progress: func(done, total int) { last = [2]int{done, total} }}
	indexes, err := x.Index(t.Context(), listing)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 2, 3} { // a-0, a-1, b-0
		if len(indexes[i]) != want {
			t.Errorf("%s: %d chunks, want %d", listing.Files[i].Path, len(indexes[i]), want)
		}
		if end := indexes[i][want-1].End(); end != listing.Files[i].Size {
			t.Errorf("%s: the index ends at %d of %d", listing.Files[i].Path, end, listing.Files[i].Size)
		}
	}
	if last != [2]int{3, 3} {
		t.Errorf("last progress: found %d of %d", last[0], last[1])
	}
}

// damage truncates a file by one byte. The listing has the size of the truncated file.
func damage(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-1); err != nil {
		t.Fatal(err)
	}
}

func TestIndexerNamesDamage(t *testing.T) {
	dir := folder(t)
	damage(t, filepath.Join(dir, "a-1"))
	damage(t, filepath.Join(dir, "b-0"))
	listing := list(t, dataset.Source{}, under(dir, "*-*")...)
	_, err := new(dataset.Indexer).Index(t.Context(), listing)
	if !errors.Is(err, recordio.ErrTruncated) {
		t.Fatalf("found error %v", err)
	}
	for _, words := range []string{"2 of 3 files", "a-1: byte ", "b-0: byte "} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("error %q: expected %q", err, words)
		}
	}
}

func TestIndexerRefusesFilesWithoutRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hollow")
	put(t, path, append([]byte{4, 3, 2, 1}, make([]byte, 16)...)) // one chunk without records
	_, err := new(dataset.Indexer).Index(t.Context(), list(t, dataset.Source{}, path))
	if !errors.Is(err, dataset.ErrNoRecords) || !strings.Contains(err.Error(), path) {
		t.Fatalf("found error %v", err)
	}
}

func TestIndexerRefusesReplacedFiles(t *testing.T) {
	dir := folder(t)
	listing := list(t, dataset.Source{}, under(dir, "*-*")...)
	writeFile(t, filepath.Join(dir, "a-1"), 5)
	_, err := new(dataset.Indexer).Index(t.Context(), listing)
	if !errors.Is(err, dataset.ErrReplaced) {
		t.Fatalf("found error %v", err)
	}
}

// TestIndexerResumes damages the finished files without a change of size and time. A second read of a finished file
// would be an error.
func TestIndexerResumes(t *testing.T) {
	dir := folder(t)
	broken := filepath.Join(dir, "b-0")
	whole, err := os.ReadFile(broken)
	if err != nil {
		t.Fatal(err)
	}
	damage(t, broken)
	listing := list(t, dataset.Source{}, under(dir, "*-*")...)
	var x dataset.Indexer
	if _, err := x.Index(t.Context(), listing); !errors.Is(err, recordio.ErrTruncated) {
		t.Fatalf("found error %v", err)
	}

	put(t, broken, whole)
	for _, f := range listing.Files[:2] {
		put(t, f.Path, make([]byte, f.Size))
		if err := os.Chtimes(f.Path, f.ModTime, f.ModTime); err != nil {
			t.Fatal(err)
		}
	}
	listing = list(t, dataset.Source{}, under(dir, "*-*")...)
	indexes, err := x.Index(t.Context(), listing)
	if err != nil {
		t.Fatalf("expected no second read of the finished files, found error %v", err)
	}
	for i, want := range []int{1, 2, 3} {
		if len(indexes[i]) != want {
			t.Errorf("%s: %d chunks, want %d", listing.Files[i].Path, len(indexes[i]), want)
		}
	}
	if _, err := x.Index(t.Context(), listing); !errors.Is(err, recordio.ErrBadMagic) {
		t.Errorf("call after a success: expected an error of the damaged files, found %v", err)
	}
}

func TestIndexerResumesAfterCancel(t *testing.T) {
	dir := folder(t)
	listing := list(t, dataset.Source{}, under(dir, "*-*", "*/*")...)
	ctx, cancel := context.WithCancel(t.Context())
	x := dataset.Indexer{Parallel: 1, Progress: func(done, _ int) {
		if done == 2 {
			cancel()
		}
	}}
	if _, err := x.Index(ctx, listing); !errors.Is(err, context.Canceled) {
		t.Fatalf("found error %v", err)
	}
	for _, f := range listing.Files[:2] {
		put(t, f.Path, make([]byte, f.Size))
		if err := os.Chtimes(f.Path, f.ModTime, f.ModTime); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := x.Index(t.Context(), listing); err != nil {
		t.Fatalf("expected no second read of the finished files, found error %v", err)
	}
}
