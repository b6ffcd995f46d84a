package tfrecord_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
)

var allCompressions = []tfrecord.Compression{tfrecord.None, tfrecord.Gzip, tfrecord.Zlib}

// write returns a file of records.
func write(t testing.TB, c tfrecord.Compression, records ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tfrecord.NewWriter(&out, c)
	for _, r := range records {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func open(file []byte) *tfrecord.File {
	return tfrecord.NewFile(bytes.NewReader(file), int64(len(file)), "a.tfrecord")
}

// collect copies the records of a loop up to its error.
func collect(records iter.Seq2[[]byte, error]) (all [][]byte, err error) {
	for r, err := range records {
		if err != nil {
			return all, err
		}
		all = append(all, bytes.Clone(r))
	}
	return all, nil
}

func equal(a, b [][]byte) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(a, b))
}

// text returns n records of different sizes, some of them empty.
func text(n int) (records [][]byte) {
	for i := range n {
		records = append(records, []byte(strings.Repeat(fmt.Sprint(i), i%7)))
	}
	return records
}

// golden is a file of the records "Hello", "" and "\x00\xff". Its checksums were computed bit by bit, as docs/formats/tfrecord.md
// defines them, by another program.
const golden = "0500000000000000" + "eab2043e" + "48656c6c6f" + "8aeeb9be" +
	"0000000000000000" + "29039807" + "d8ea82a2" +
	"0200000000000000" + "78270b34" + "00ff" + "10a389eb"

var goldenRecords = [][]byte{[]byte("Hello"), {}, []byte("\x00\xff")}

func TestGoldenBytes(t *testing.T) {
	if got := hex.EncodeToString(write(t, tfrecord.None, goldenRecords...)); got != golden {
		t.Errorf("wrote %s, expected %s", got, golden)
	}
	file, err := hex.DecodeString(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := collect(open(file).Records()); err != nil || !equal(got, goldenRecords) {
		t.Errorf("read %q, %v, expected %q", got, err, goldenRecords)
	}
}

// Records of all sizes come back from the file, from its chunks one by one, and from other goroutines at the same time.
func TestRoundTrip(t *testing.T) {
	records := text(50)
	for _, size := range []int{1 << 10, 20 << 10, 256<<10 - tfrecord.Overhead, 256 << 10, 700_001, 3 << 20, 5} {
		records = append(records, bytes.Repeat([]byte{byte(size), 'x', byte(size >> 8)}, size/3+1)[:size])
	}
	for _, c := range allCompressions {
		f := open(write(t, c, records...))
		index, err := f.Index(t.Context(), tfrecord.IndexOptions{RecordsPerChunk: 9})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.Compression(); err != nil || got != c {
			t.Errorf("compression is %s, %v, expected %s", got, err, c)
		}
		var readers sync.WaitGroup
		for range 3 {
			readers.Go(func() {
				if got, err := collect(f.Records()); err != nil || !equal(got, records) {
					t.Errorf("%s: read %d records, %v, expected %d as written", c, len(got), err, len(records))
				}
				for _, chunk := range index {
					if got, err := collect(f.Chunk(chunk)); err != nil || !equal(got, records[chunk.First:chunk.First+chunk.Records]) {
						t.Errorf("%s: read %d records of %+v, %v", c, len(got), chunk, err)
					}
				}
			})
		}
		readers.Wait()
	}
}

func TestIndexSetsSizeOfChunks(t *testing.T) {
	records := [][]byte{make([]byte, 84), make([]byte, 84), make([]byte, 84), make([]byte, 184), make([]byte, 9), {}} // 100, 100, 100, 200, 25, 16 bytes
	file := write(t, tfrecord.None, records...)
	type part struct{ offset, size, first, records int64 }
	for _, test := range []struct {
		options tfrecord.IndexOptions
		want    []part
	}{
		{tfrecord.IndexOptions{}, []part{{0, 541, 0, 6}}},
		{tfrecord.IndexOptions{RecordsPerChunk: 4}, []part{{0, 500, 0, 4}, {500, 41, 4, 2}}},
		{tfrecord.IndexOptions{RecordsPerChunk: 3}, []part{{0, 300, 0, 3}, {300, 241, 3, 3}}},
		{tfrecord.IndexOptions{ChunkBytes: 200}, []part{{0, 200, 0, 2}, {200, 100, 2, 1}, {300, 200, 3, 1}, {500, 41, 4, 2}}},
		{tfrecord.IndexOptions{ChunkBytes: 150}, []part{{0, 100, 0, 1}, {100, 100, 1, 1}, {200, 100, 2, 1}, {300, 200, 3, 1}, {500, 41, 4, 2}}},
		{tfrecord.IndexOptions{ChunkBytes: 400, RecordsPerChunk: 2}, []part{{0, 200, 0, 2}, {200, 300, 2, 2}, {500, 41, 4, 2}}},
	} {
		index, err := open(file).Index(t.Context(), test.options)
		if err != nil {
			t.Fatal(err)
		}
		var got []part
		for _, c := range index {
			got = append(got, part{c.Offset, c.Size, c.First, c.Records})
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%+v: found %v, expected %v", test.options, got, test.want)
		}
	}
	if index, err := open(file).Index(t.Context(), tfrecord.IndexOptions{ChunkBytes: -1}); err == nil {
		t.Errorf("found %v, expected an error of negative options", index)
	}
}

// A compressed file cannot be read from the middle: it is one chunk whatever the options say.
func TestCompressedFileIsOneChunk(t *testing.T) {
	for _, c := range allCompressions[1:] {
		file := write(t, c, text(30)...)
		index, err := open(file).Index(t.Context(), tfrecord.IndexOptions{RecordsPerChunk: 1})
		if err != nil || len(index) != 1 || index[0].Size != int64(len(file)) || index[0].Records != 30 || index[0].Compression != c {
			t.Errorf("%s: found %+v, %v, expected one chunk of 30 records", c, index, err)
		}
	}
}

func TestFileWithoutRecordsHasNoChunks(t *testing.T) {
	for _, c := range allCompressions {
		f := open(write(t, c))
		records, err := collect(f.Records())
		index, indexErr := f.Index(t.Context(), tfrecord.IndexOptions{})
		if err != nil || indexErr != nil || len(records) > 0 || len(index) > 0 {
			t.Errorf("%s: found %v, %v, and records %q, %v, expected none", c, index, indexErr, records, err)
		}
	}
}

// countingReader counts bytes.
type countingReader struct {
	io.ReaderAt
	bytes int
}

func (r *countingReader) ReadAt(p []byte, at int64) (int, error) {
	n, err := r.ReaderAt.ReadAt(p, at)
	r.bytes += n
	return n, err
}

// The index of large records reads their headers only: damaged data is found by a reader.
func TestIndexSkipsDataOfLargeRecords(t *testing.T) {
	var records [][]byte
	for range 20 {
		records = append(records, make([]byte, 1<<20))
	}
	file := write(t, tfrecord.None, records...)
	file[10<<20] ^= 1
	counter := &countingReader{ReaderAt: bytes.NewReader(file)}
	f := tfrecord.NewFile(counter, int64(len(file)), "a.tfrecord")
	if index, err := f.Index(t.Context(), tfrecord.IndexOptions{}); err != nil || len(index) != 20 || counter.bytes > 600<<10 {
		t.Errorf("found %d chunks, %v, after %d bytes, expected 20 after less than one record", len(index), err, counter.bytes)
	}
	if got, err := collect(f.Records()); !errors.Is(err, recordio.ErrBadChecksum) || len(got) != 9 {
		t.Errorf("read %d records, %v, expected damage in record 9", len(got), err)
	}
}

func TestIndexEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("enough")
	cancel(because)
	if _, err := open(write(t, tfrecord.None, text(3)...)).Index(ctx, tfrecord.IndexOptions{}); !errors.Is(err, because) {
		t.Errorf("found %v, expected the cause of the context", err)
	}
}

// lastRead cancels a context at the second read of a file, and keeps the end of the last read.
type lastRead struct {
	io.ReaderAt
	cancel context.CancelFunc
	end    int64
}

func (l *lastRead) ReadAt(p []byte, off int64) (int, error) {
	n, err := l.ReaderAt.ReadAt(p, off)
	l.end = off + int64(n)
	if off > 0 {
		l.cancel()
	}
	return n, err
}

// The index of a compressed file ends with its context, also inside a record.
func TestIndexOfALargeCompressedRecordEndsWithContext(t *testing.T) {
	data := make([]byte, 4<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // takes as many bytes when it is compressed
	var file bytes.Buffer
	w, err := gzip.NewWriterLevel(&file, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{header(uint64(len(data))), data, make([]byte, 4)} { // an index does not verify the checksum of the data
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	read := &lastRead{ReaderAt: bytes.NewReader(file.Bytes()), cancel: cancel}
	index, err := tfrecord.NewFile(read, int64(file.Len()), "a.tfrecord").Index(ctx, tfrecord.IndexOptions{})
	if !errors.Is(err, context.Canceled) || read.end >= int64(file.Len()) {
		t.Errorf("found %d chunks, %v, after %d of %d bytes, expected the end of the context before the last byte", len(index), err, read.end, file.Len())
	}
}

func TestRecognize(t *testing.T) {
	var other bytes.Buffer
	w := recordio.NewWriter(&other, recordio.WriterOptions{})
	if err := errors.Join(w.Write([]byte("x")), w.Close()); err != nil {
		t.Fatal(err)
	}
	plain := write(t, tfrecord.None, text(9)...)
	for name, test := range map[string]struct {
		file []byte
		want bool
	}{
		"plain":                       {plain, true},
		"plain, cut short":            {plain[:13], true},
		"plain, cut in the header":    {plain[:11], false},
		"gzip":                        {write(t, tfrecord.Gzip, text(9)...), true},
		"zlib":                        {write(t, tfrecord.Zlib, text(9)...), true},
		"gzip header only":            {write(t, tfrecord.Gzip, text(9)...)[:10], false},
		"length like a gzip header":   {write(t, tfrecord.None, make([]byte, 0x088b1f)), true},
		"length like a zlib header":   {write(t, tfrecord.None, make([]byte, 0x9c78)), true},
		"no records":                  {nil, false},
		"RecordIO":                    {other.Bytes(), false},
		"text":                        {[]byte("species,width,height\nsetosa,1,2\n"), false},
		"text that looks like zlib":   {[]byte("x^2+y^2 is a formula, x\x9c is not"), false},
		"gzip of something different": {gzipped(t, []byte("species,width,height\n")), false},
	} {
		if got, err := open(test.file).Recognize(); err != nil || got != test.want {
			t.Errorf("%s: found %v, %v, expected %v", name, got, err, test.want)
		}
	}
}

func TestOpenRefusesDirectory(t *testing.T) {
	dir := t.TempDir()
	if _, err := tfrecord.Open(dir); !errors.Is(err, recordio.ErrNotRegular) || !strings.Contains(err.Error(), dir) {
		t.Errorf("found %v, expected %v", err, recordio.ErrNotRegular)
	}
	if _, err := tfrecord.Open(filepath.Join(dir, "gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("found %v, expected %v", err, os.ErrNotExist)
	}
}

// failingWriter accepts some bytes.
type failingWriter struct{ left int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		return 0, io.ErrShortWrite
	}
	w.left -= len(p)
	return len(p), nil
}

// A record that is too large leaves the Writer usable, and an error of the underlying writer is final.
func TestWriterErrors(t *testing.T) {
	var out bytes.Buffer
	w := tfrecord.NewWriter(&out, tfrecord.None)
	if err := w.Write(make([]byte, tfrecord.DefaultMaxRecordBytes+1)); !errors.Is(err, recordio.ErrTooLarge) {
		t.Errorf("found %v, expected %v", err, recordio.ErrTooLarge)
	}
	if err := errors.Join(w.Write([]byte("x")), w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	if err := w.Write([]byte("y")); !errors.Is(err, recordio.ErrClosed) {
		t.Errorf("found %v, expected %v", err, recordio.ErrClosed)
	}
	if got, err := collect(open(out.Bytes()).Records()); err != nil || len(got) != 1 {
		t.Errorf("read %q, %v, expected one record", got, err)
	}
	for _, c := range allCompressions {
		w := tfrecord.NewWriter(&failingWriter{}, c)
		err := w.Write([]byte("x"))
		if err == nil {
			err = w.Close()
		}
		if again := w.Write([]byte("y")); err == nil || !errors.Is(again, err) || !errors.Is(w.Close(), err) {
			t.Errorf("%s: found %v, then %v, expected the same error", c, err, again)
		}
	}
	if err := tfrecord.NewWriter(&out, 9).Write(nil); err == nil || !strings.Contains(err.Error(), "compression 9") {
		t.Errorf("found %v, expected an error of the compression", err)
	}
}

func TestRecordsFromSkipsRecords(t *testing.T) {
	all := text(500)
	for _, c := range []tfrecord.Compression{tfrecord.None, tfrecord.Gzip, tfrecord.Zlib} {
		f := open(write(t, c, all...))
		for _, start := range []int{0, 1, 250, 499, 500, 501} {
			if found, err := collect(f.RecordsFrom(0, 0, int64(start))); err != nil || !equal(found, all[min(start, len(all)):]) {
				t.Errorf("%s, start %d: found %d records, %v", c, start, len(found), err)
			}
		}
		if c != tfrecord.None {
			if _, err := collect(f.RecordsFrom(10, 1, 0)); !errors.Is(err, recordio.ErrChanged) {
				t.Errorf("%s: offset 10: found %v", c, err)
			}
			continue
		}
		index, err := f.Index(t.Context(), tfrecord.IndexOptions{RecordsPerChunk: 100})
		if err != nil {
			t.Fatal(err)
		}
		if found, err := collect(f.RecordsFrom(index[2].Offset, 200, 5)); err != nil || !equal(found, all[205:]) {
			t.Errorf("from record 200, skip 5: found %d records, %v", len(found), err)
		}
		_, err = collect(f.RecordsFrom(index[2].Offset+1, 200, 0))
		if bad, ok := errors.AsType[*tfrecord.Error](err); !ok || bad.Record != 200 || bad.Offset != index[2].Offset+1 {
			t.Errorf("inside a record: found %v", err)
		}
	}
}
