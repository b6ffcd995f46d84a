package dataset_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/dataset"
	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
)

// writeTFRecord creates a TFRecord file with n records of size bytes. The records of several files differ.
func writeTFRecord(t testing.TB, path string, c tfrecord.Compression, n, size int) {
	t.Helper()
	var file bytes.Buffer
	w := tfrecord.NewWriter(&file, c)
	for i := range n {
		record := bytes.Repeat(fmt.Appendf(nil, "%s-%d ", filepath.Base(path), i), size)[:size]
		if err := w.Write(record); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, path, file.Bytes())
}

// The chunks of a file have its records in order, in both formats. Each chunk is read without the chunks before it.
func TestReader(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "recordio"), 5)
	writeFile(t, filepath.Join(dir, "recordio.tfrecord"), 2)
	writeTFRecord(t, filepath.Join(dir, "plain"), tfrecord.None, 50, 50_000)
	writeTFRecord(t, filepath.Join(dir, "gzip"), tfrecord.Gzip, 50, 50_000)
	writeTFRecord(t, filepath.Join(dir, "zlib"), tfrecord.Zlib, 50, 50_000)
	writeTFRecord(t, filepath.Join(dir, "tiny"), tfrecord.None, 1, 1)
	listing := list(t, dataset.Source{}, filepath.Join(dir, "*"))
	indexes, err := new(dataset.Indexer).Index(t.Context(), listing)
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]struct {
		chunks      int
		compression recordio.Compression
		layout      recordio.Layout
	}{
		"recordio": {5, recordio.None, recordio.First}, "recordio.tfrecord": {2, recordio.None, recordio.First},
		"plain": {3, recordio.None, recordio.TFRecord}, "gzip": {1, recordio.Gzip, recordio.TFRecord},
		"zlib": {1, recordio.Zlib, recordio.TFRecord}, "tiny": {1, recordio.None, recordio.TFRecord},
	}
	for i, f := range listing.Files {
		want := wanted[filepath.Base(f.Path)]
		if len(indexes[i]) != want.chunks || indexes[i][want.chunks-1].End() != f.Size {
			t.Fatalf("%s of %d bytes: index %+v, expected %d chunks", f.Path, f.Size, indexes[i], want.chunks)
		}
		whole, err := dataset.Open(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		var records []string
		for record, err := range whole.Records() {
			if err != nil {
				t.Fatal(err)
			}
			records = append(records, string(record))
		}
		n := len(records)
		for c := want.chunks - 1; c >= 0; c-- {
			ix := indexes[i][c]
			if ix.Layout != want.layout || ix.Compression != want.compression || ix.Checksum == 0 {
				t.Errorf("%s: chunk %d is %+v, expected %+v and a checksum", f.Path, c, ix, want)
			}
			file, err := dataset.OpenAs(f.Path, ix.Layout, dataset.Stamp{})
			if err != nil {
				t.Fatal(err)
			}
			n -= int(ix.Records)
			at := n
			for record, err := range file.Chunk(ix) {
				if err != nil || string(record) != records[at] {
					t.Fatalf("%s: chunk %d: record %d: found %.20q, %v", f.Path, c, at, record, err)
				}
				at++
			}
			if at != n+int(ix.Records) || file.Size() != f.Size {
				t.Errorf("%s: chunk %d: read %d records of a file of %d bytes, expected %d", f.Path, c, at-n, file.Size(), ix.Records)
			}
			if err := file.Close(); err != nil {
				t.Error(err)
			}
		}
		if n != 0 {
			t.Errorf("%s: %d records are in no chunk", f.Path, n)
		}
		if err := whole.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A damaged TFRecord file is named with the byte, together with damaged RecordIO files. A file without records is refused.
func TestIndexerNamesDamagedTFRecordFiles(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), 3)
	writeTFRecord(t, filepath.Join(dir, "b"), tfrecord.None, 3, 10)
	writeTFRecord(t, filepath.Join(dir, "c.tfrecord"), tfrecord.None, 3, 10)
	writeTFRecord(t, filepath.Join(dir, "d"), tfrecord.Gzip, 3, 10)
	writeTFRecord(t, filepath.Join(dir, "e.tfrecord"), tfrecord.Gzip, 0, 0)
	put(t, filepath.Join(dir, "short"), make([]byte, 19))
	for _, name := range []string{"a", "b", "d"} {
		damage(t, filepath.Join(dir, name))
	}
	content, err := os.ReadFile(filepath.Join(dir, "c.tfrecord"))
	if err != nil {
		t.Fatal(err)
	}
	content[0]++
	put(t, filepath.Join(dir, "c.tfrecord"), content)
	for name, want := range map[string]struct {
		err  error
		text string
	}{
		"a":          {recordio.ErrTruncated, "a: byte "},
		"b":          {recordio.ErrTruncated, "b: record 2, byte 52: truncated"},
		"c.tfrecord": {recordio.ErrBadChecksum, "c.tfrecord: record 0, byte 0: bad checksum of the length"},
		"d":          {recordio.ErrTruncated, "of the decompressed data"},
		"e.tfrecord": {dataset.ErrNoRecords, "e.tfrecord: "},
		"short":      {recordio.ErrBadMagic, "short: byte 0: bad magic number: not a RecordIO, TFRecord or Parquet file"},
	} {
		_, err := new(dataset.Indexer).Index(t.Context(), list(t, dataset.Source{}, filepath.Join(dir, name)))
		if !errors.Is(err, want.err) || !strings.Contains(err.Error(), want.text) || !strings.Contains(err.Error(), filepath.Join(dir, name)) {
			t.Errorf("%s: found %v, expected %q", name, err, want.text)
		}
	}
	_, err = new(dataset.Indexer).Index(t.Context(), list(t, dataset.Source{}, filepath.Join(dir, "*")))
	if all, ok := errors.AsType[*dataset.FilesError](err); !ok || all.Bad != 6 {
		t.Errorf("found %v, expected errors of 6 files", err)
	}
}

// A file that was replaced or cut after it was indexed is an error of each chunk that is not the same. The error names the file and the byte.
func TestChunkOfReplacedTFRecordFile(t *testing.T) {
	for _, c := range []tfrecord.Compression{tfrecord.None, tfrecord.Gzip} {
		path := filepath.Join(t.TempDir(), "a")
		writeTFRecord(t, path, c, 300, 5_000)
		indexes, err := new(dataset.Indexer).Index(t.Context(), list(t, dataset.Source{}, path))
		if err != nil {
			t.Fatal(err)
		}
		last := indexes[0][len(indexes[0])-1]
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for name, replace := range map[string]func(){
			"cut":          func() { damage(t, path) },
			"other format": func() { writeFile(t, path, 100) },
			"other data":   func() { writeTFRecord(t, path, c, 300, 5_001) },
			"compressed":   func() { writeTFRecord(t, path, tfrecord.Zlib, 300, 5_000) },
		} {
			put(t, path, whole)
			replace()
			file, err := dataset.OpenAs(path, last.Layout, dataset.Stamp{})
			if err != nil {
				t.Fatal(err)
			}
			var failed error
			for _, err := range file.Chunk(last) {
				failed = err
			}
			if !errors.Is(failed, recordio.ErrChanged) || !strings.HasPrefix(failed.Error(), fmt.Sprintf("%s: byte %d: ", path, last.Offset)) {
				t.Errorf("%s, %s: found %v", c, name, failed)
			}
			if err := file.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
