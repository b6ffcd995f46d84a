package recordio_test

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"trainmaster/recordio"
)

var (
	allLayouts      = []recordio.Layout{recordio.First, recordio.Second, recordio.Fluid}
	allCompressions = []recordio.Compression{recordio.None, recordio.Snappy, recordio.Gzip}
)

// write returns the bytes of a file with the given records.
func write(t testing.TB, options recordio.WriterOptions, records ...[]byte) []byte {
	t.Helper()
	var file bytes.Buffer
	w := recordio.NewWriter(&file, options)
	for _, r := range records {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func open(file []byte) *recordio.File {
	return recordio.NewFile(bytes.NewReader(file), int64(len(file)), "test.rec")
}

// read returns copies of the records before the first error.
func read(f *recordio.File) (records [][]byte, err error) {
	for r, err := range f.Records() {
		if err != nil {
			return records, err
		}
		records = append(records, bytes.Clone(r))
	}
	return records, nil
}

func mustRead(t testing.TB, file []byte) [][]byte {
	t.Helper()
	records, err := read(open(file))
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func equal(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

// words returns n records of text, some of them empty.
func words(n int) [][]byte {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	records := make([][]byte, n)
	for i := range records {
		for range rng.IntN(40) {
			records[i] = fmt.Appendf(records[i], "word%d ", rng.IntN(50))
		}
	}
	return records
}

var vectors = []struct {
	name        string
	layout      recordio.Layout
	compression recordio.Compression
	bytes       string
}{
	{"first layout, none", recordio.First, recordio.None,
		"04030201 837e4759 00000000 13000000 02000000 05000000 48656c6c6f 06000000 576f726c6421"},
	{"second layout, none", recordio.Second, recordio.None,
		"04030201 02000000 f8336d78 01000000 13000000 05000000 48656c6c6f 06000000 576f726c6421"},
	{"fluid layout, none", recordio.Fluid, recordio.None,
		"04030201 02000000 837e4759 00000000 13000000 05000000 48656c6c6f 06000000 576f726c6421"},
	{"fluid layout, snappy", recordio.Fluid, recordio.Snappy,
		"04030201 02000000 5c2b1953 01000000 25000000 ff060000734e61507059 01170000 b2db730a 05000000 48656c6c6f 06000000 576f726c6421"},
	{"first layout, snappy", recordio.First, recordio.Snappy,
		"04030201 5c2b1953 01000000 25000000 02000000 ff060000734e61507059 01170000 b2db730a 05000000 48656c6c6f 06000000 576f726c6421"},
}

func TestVectors(t *testing.T) {
	records := [][]byte{[]byte("Hello"), []byte("World!")}
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			want, err := hex.DecodeString(strings.ReplaceAll(v.bytes, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			got := write(t, recordio.WriterOptions{Layout: v.layout, Compression: v.compression}, records...)
			if !bytes.Equal(got, want) {
				t.Errorf("written: %x\nwanted:  %x", got, want)
			}
			if got := mustRead(t, want); !equal(got, records) {
				t.Errorf("read %q", got)
			}
			index, err := open(want).Index()
			if err != nil {
				t.Fatal(err)
			}
			sum := want[4:]
			if v.layout != recordio.First {
				sum = want[8:]
			}
			wantIndex := []recordio.Index{{
				Size: uint32(len(want) - recordio.HeaderSize), Records: 2, Compression: v.compression, Layout: v.layout, Checksum: binary.LittleEndian.Uint32(sum),
			}}
			if !slices.Equal(index, wantIndex) {
				t.Errorf("index is %+v, want %+v", index, wantIndex)
			}
		})
	}
}

// TestRoundTrip covers all layouts, compressions and chunk sizes, with Records and with Index and Chunk.
func TestRoundTrip(t *testing.T) {
	records := words(400)
	for _, layout := range allLayouts {
		for _, compression := range allCompressions {
			for _, cut := range []recordio.WriterOptions{{}, {ChunkBytes: 1}, {ChunkBytes: 1000}, {RecordsPerChunk: 1}, {RecordsPerChunk: 150}, {RecordsPerChunk: 7, ChunkBytes: 900}} {
				cut.Layout, cut.Compression = layout, compression
				t.Run(fmt.Sprintf("%s/%s/%d bytes/%d records", layout, compression, cut.ChunkBytes, cut.RecordsPerChunk), func(t *testing.T) {
					file := write(t, cut, records...)
					if !equal(mustRead(t, file), records) {
						t.Error("Records: expected the written records")
					}
					f := open(file)
					index, err := f.Index()
					if err != nil {
						t.Fatal(err)
					}
					var got [][]byte
					end := int64(0)
					for _, ix := range index {
						if ix.Offset != end || ix.Layout != layout || ix.Compression != compression {
							t.Fatalf("%+v, expected offset %d", ix, end)
						}
						end = ix.End()
						n := uint32(0)
						for r, err := range f.Chunk(ix) {
							if err != nil {
								t.Fatal(err)
							}
							got = append(got, bytes.Clone(r))
							n++
						}
						if n != ix.Records || cut.RecordsPerChunk > 0 && n > uint32(cut.RecordsPerChunk) {
							t.Fatalf("a chunk of %d records: %+v", n, ix)
						}
					}
					if end != int64(len(file)) || !equal(got, records) {
						t.Error("Chunk: expected the written records")
					}
				})
			}
		}
	}
}

// TestLargeRecordsGetTheirOwnChunk covers F44.
func TestLargeRecordsGetTheirOwnChunk(t *testing.T) {
	large := bytes.Repeat([]byte("large "), 1000)
	records := [][]byte{[]byte("a"), []byte("b"), large, []byte("c"), []byte("d")}
	for _, layout := range allLayouts {
		for _, compression := range allCompressions {
			file := write(t, recordio.WriterOptions{ChunkBytes: 100, Layout: layout, Compression: compression}, records...)
			index, err := open(file).Index()
			if err != nil {
				t.Fatal(err)
			}
			var counts []uint32
			for _, ix := range index {
				counts = append(counts, ix.Records)
			}
			if want := []uint32{2, 1, 2}; !slices.Equal(counts, want) {
				t.Errorf("%s, %s: chunks hold %v records, want %v", layout, compression, counts, want)
			}
			if !equal(mustRead(t, file), records) {
				t.Errorf("%s, %s: expected the written records", layout, compression)
			}
		}
	}
}

func TestWriterRefusesWhatReadersWould(t *testing.T) {
	var file bytes.Buffer
	w := recordio.NewWriter(&file, recordio.WriterOptions{MaxChunkBytes: 100})
	if err := w.Write(make([]byte, 97)); !errors.Is(err, recordio.ErrTooLarge) {
		t.Fatalf("a record of 97 bytes and its length of 4: %v", err)
	}
	if err := w.Write(make([]byte, 96)); err != nil {
		t.Fatalf("largest record after a refused record: got %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f := open(file.Bytes())
	f.MaxChunkBytes = 100
	if records, err := read(f); err != nil || len(records) != 1 {
		t.Fatalf("%d records, %v", len(records), err)
	}
}

func TestWriterOptionsAreChecked(t *testing.T) {
	for _, options := range []recordio.WriterOptions{
		{Compression: 3}, {Layout: 4}, {ChunkBytes: -1}, {RecordsPerChunk: -1}, {MaxChunkBytes: 3},
		{MaxChunkBytes: 1 << 32}, {ChunkBytes: 2000, MaxChunkBytes: 1000},
	} {
		var file bytes.Buffer
		w := recordio.NewWriter(&file, options)
		if err := w.Write(nil); err == nil {
			t.Errorf("%+v: Write: expected an error", options)
		}
		if err := w.Close(); err == nil {
			t.Errorf("%+v: Close: expected an error", options)
		}
		if file.Len() != 0 {
			t.Errorf("%+v: %d bytes were written", options, file.Len())
		}
	}
}

// failAfter fails after n writes.
type failAfter struct{ n int }

var errDiskFull = errors.New("disk full")

func (f *failAfter) Write(p []byte) (int, error) {
	if f.n--; f.n < 0 {
		return len(p) / 2, errDiskFull
	}
	return len(p), nil
}

func TestWriterErrorsAreFinal(t *testing.T) {
	w := recordio.NewWriter(&failAfter{1}, recordio.WriterOptions{RecordsPerChunk: 1})
	if err := w.Write([]byte("fits")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.Write([]byte("does not")); !errors.Is(err, errDiskFull) {
			t.Fatalf("Write gave %v", err)
		}
	}
	if err := w.Close(); !errors.Is(err, errDiskFull) {
		t.Fatalf("Close gave %v", err)
	}
}

func TestWriterAfterClose(t *testing.T) {
	w := recordio.NewWriter(io.Discard, recordio.WriterOptions{})
	for range 2 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Write(nil); !errors.Is(err, recordio.ErrClosed) {
		t.Fatalf("Write after Close gave %v", err)
	}
}

func TestStopEarly(t *testing.T) {
	f := open(write(t, recordio.WriterOptions{RecordsPerChunk: 2}, words(10)...))
	for stop := range 10 {
		n := 0
		for _, err := range f.Records() {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n > stop {
				break
			}
		}
		if n != stop+1 {
			t.Fatalf("break at record %[2]d: the loop continued to record %[1]d", n, stop)
		}
	}
}

// TestRecordsDoNotOverlap appends to a record. The next record must not change.
func TestRecordsDoNotOverlap(t *testing.T) {
	records := words(100)
	i := 0
	for r, err := range open(write(t, recordio.WriterOptions{}, records...)).Records() {
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(r, records[i]) {
			t.Fatalf("record %d was overwritten: %q", i, r)
		}
		_ = append(r, "bytes beyond the record"...)
		i++
	}
}

// TestConcurrentReaders reads one File in several goroutines.
func TestConcurrentReaders(t *testing.T) {
	records := words(500)
	for _, compression := range allCompressions {
		f := open(write(t, recordio.WriterOptions{RecordsPerChunk: 10, Compression: compression}, records...))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				index, err := f.Index()
				if err != nil {
					t.Error(err)
					return
				}
				for i := range index {
					n := 0
					for r, err := range f.Chunk(index[i]) {
						if err != nil || !bytes.Equal(r, records[10*i+n]) {
							t.Errorf("chunk %d, record %d: %q, %v", i, n, r, err)
							return
						}
						n++
					}
				}
			})
		}
		wg.Wait()
	}
}

func TestBuffersAreReused(t *testing.T) {
	records := words(5000)
	for _, layout := range allLayouts {
		for _, compression := range allCompressions {
			f := open(write(t, recordio.WriterOptions{ChunkBytes: 4096, Layout: layout, Compression: compression}, records...))
			index, err := f.Index()
			if err != nil {
				t.Fatal(err)
			}
			scan := func() {
				for _, err := range f.Records() {
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			scan()
			// The pool may be emptied in between, and gzip allocates small tables. Buffers must not be allocated for
			// each chunk.
			if bytes, chunks := allocated(scan), uint64(len(index)); bytes > 4096*chunks/4 {
				t.Errorf("%s, %s: %d bytes were allocated for %d chunks of 4096", layout, compression, bytes, chunks)
			}
		}
	}
}

func TestIndexRoundTripInGob(t *testing.T) {
	want := []recordio.Index{{Offset: 1 << 40, Size: 1 << 31, Records: 77, Compression: recordio.Gzip, Layout: recordio.Second}, {Layout: recordio.First}}
	var wire bytes.Buffer
	if err := gob.NewEncoder(&wire).Encode(want); err != nil {
		t.Fatal(err)
	}
	var got []recordio.Index
	if err := gob.NewDecoder(&wire).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%+v became %+v", want, got)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	regular := filepath.Join(dir, "file.rec")
	if err := os.WriteFile(regular, write(t, recordio.WriterOptions{}, []byte("r")), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := recordio.Open(regular)
	if err != nil {
		t.Fatal(err)
	}
	if records, err := read(f); err != nil || len(records) != 1 {
		t.Fatalf("%q, %v", records, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, dir} { // an Open that waits for a writer would block here
		if _, err := recordio.Open(path); !errors.Is(err, recordio.ErrNotRegular) || !strings.Contains(err.Error(), path) {
			t.Errorf("Open(%s) gave %v", path, err)
		}
	}
	if _, err := recordio.Open(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file gave %v", err)
	}
}

func TestParseCompression(t *testing.T) {
	for _, c := range allCompressions {
		if got, err := recordio.ParseCompression(c.String()); err != nil || got != c {
			t.Errorf("%s became %s, %v", c, got, err)
		}
	}
	if _, err := recordio.ParseCompression("lz4"); err == nil {
		t.Error("lz4: expected an error")
	}
}
