package recordio_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/recordio"
)

func TestOpenErrorNamesFileType(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("gone/target", link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		link:                      link + ": expected a file, found a symbolic link to gone/target, which does not exist",
		filepath.Join(file, "in"): filepath.Join(file, "in") + ": expected " + file + " to be a directory, found a file",
		dir:                       dir + ": not a regular file but a directory",
	} {
		_, err := recordio.Open(path)
		if err == nil || !strings.HasPrefix(err.Error(), want) || path == link && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open %s gave %v, want %q", path, err, want)
		}
	}
	if _, err := recordio.Open(filepath.Join(dir, "two\nlines")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing file gave %v", err)
	}
	odd := filepath.Join(dir, "a\nb")
	if err := os.WriteFile(odd, []byte("no records, 20 bytes or more"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := recordio.Open(odd)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Index(); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("a file with a line feed in its name gave %v", err)
	}
}

// Each start in a file yields the records from there on.
func TestRecordsFromSkipsRecords(t *testing.T) {
	all := words(500)
	for _, c := range []recordio.Compression{recordio.None, recordio.Snappy, recordio.Gzip} {
		for _, perChunk := range []int{1, 7, 500} {
			f := open(write(t, recordio.WriterOptions{Compression: c, RecordsPerChunk: perChunk}, all...))
			index, err := f.Index()
			if err != nil {
				t.Fatal(err)
			}
			for _, start := range []int{0, 1, 6, 7, 8, 250, 499, 500, 501} {
				wantFrom(t, f, 0, start, all[min(start, len(all)):])
			}
			last := index[len(index)-1]
			wantFrom(t, f, last.Offset, 0, all[len(all)-int(last.Records):])
			wantFrom(t, f, last.End(), 0, nil)
		}
	}
}

func wantFrom(t *testing.T, f *recordio.File, offset int64, skip int, want [][]byte) {
	t.Helper()
	var found [][]byte
	for record, err := range f.RecordsFrom(offset, int64(skip)) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, slices.Clone(record))
	}
	if !equal(found, want) {
		t.Errorf("offset %d, skip %d: found %d records, expected %d", offset, skip, len(found), len(want))
	}
}

// An offset inside a chunk is an error that names it.
func TestRecordsFromRefusesOffsetInsideAChunk(t *testing.T) {
	f := open(write(t, recordio.WriterOptions{}, words(10)...))
	for _, err := range f.RecordsFrom(3, 0) {
		if bad, ok := errors.AsType[*recordio.Error](err); !ok || bad.Offset != 3 || !errors.Is(err, recordio.ErrBadMagic) {
			t.Errorf("found %v, expected a bad magic number at byte 3", err)
		}
	}
}
