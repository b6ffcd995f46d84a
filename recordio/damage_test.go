package recordio_test

import (
	"bytes"
	stdgzip "compress/gzip"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/s2"
	"trainmaster/recordio"
)

// wantError checks the sentinel, the file name and the offset of an error.
func wantError(t *testing.T, err, sentinel error, offset int64) {
	t.Helper()
	where, ok := errors.AsType[*recordio.Error](err)
	switch {
	case !errors.Is(err, sentinel):
		t.Errorf("error is %q, want %q", err, sentinel)
	case !ok:
		t.Errorf("error %q: expected the file and the offset", err)
	case where.File != "test.rec" || where.Offset != offset:
		t.Errorf("error is about %s at %d, want test.rec at %d", where.File, where.Offset, offset)
	}
}

// chunk encodes a chunk with a valid checksum.
func chunk(layout recordio.Layout, code uint32, records uint32, payload []byte) []byte {
	words := []uint32{0x01020304, crc32.ChecksumIEEE(payload), code, uint32(len(payload)), records}
	switch layout {
	case recordio.Fluid:
		words = []uint32{0x01020304, records, crc32.ChecksumIEEE(payload), code, uint32(len(payload))}
	case recordio.Second:
		words = []uint32{0x01020304, records, crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)), code, uint32(len(payload))}
	}
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return append(b, payload...)
}

// TestDamage covers F40: each kind of damage to the second of three chunks is an error with its position.
func TestDamage(t *testing.T) {
	records := words(30)
	for _, layout := range allLayouts {
		for _, compression := range allCompressions {
			whole := write(t, recordio.WriterOptions{RecordsPerChunk: 10, Layout: layout, Compression: compression}, records...)
			index, err := open(whole).Index()
			if err != nil {
				t.Fatal(err)
			}
			second := index[1].Offset
			compressor, size := 8, 12
			if layout != recordio.First {
				compressor, size = 12, 16
			}
			for name, c := range map[string]struct {
				change   func(file []byte) []byte
				sentinel error
			}{
				"magic":         {func(f []byte) []byte { f[second]++; return f }, recordio.ErrBadMagic},
				"compressor":    {func(f []byte) []byte { f[second+int64(compressor)] = 9; return f }, recordio.ErrBadCompressor},
				"payload":       {func(f []byte) []byte { f[second+25]++; return f }, recordio.ErrBadChecksum},
				"smaller size":  {func(f []byte) []byte { f[second+int64(size)]--; return f }, recordio.ErrBadChecksum},
				"zeros":         {func(f []byte) []byte { clear(f[second:]); return f }, recordio.ErrBadMagic},
				"no header":     {func(f []byte) []byte { return f[:second+1] }, recordio.ErrTruncated},
				"no payload":    {func(f []byte) []byte { return f[:second+20] }, recordio.ErrTruncated},
				"short payload": {func(f []byte) []byte { return f[:index[2].Offset-1] }, recordio.ErrTruncated},
			} {
				t.Run(layout.String()+"/"+compression.String()+"/"+name, func(t *testing.T) {
					file := c.change(bytes.Clone(whole))
					got, err := read(open(file))
					wantError(t, err, c.sentinel, second)
					if !equal(got, records[:10]) {
						t.Errorf("expected the records of the first chunk before the error, found %d", len(got))
					}
					if name == "payload" || name == "smaller size" {
						return // an index does not read payloads
					}
					if index, err := open(file).Index(); err == nil {
						t.Errorf("Index: found %d chunks", len(index))
					} else {
						wantError(t, err, c.sentinel, second)
					}
				})
			}
		}
	}
}

// The index of a file finds a payload that lacks a byte, although it reads no payload.
func TestIndexOfATruncatedFile(t *testing.T) {
	for _, layout := range allLayouts {
		for _, compression := range allCompressions {
			whole := write(t, recordio.WriterOptions{RecordsPerChunk: 10, Layout: layout, Compression: compression}, words(30)...)
			index, err := open(whole).Index()
			if err != nil {
				t.Fatal(err)
			}
			last := index[len(index)-1].Offset
			_, err = open(whole[:len(whole)-1]).Index()
			wantError(t, err, recordio.ErrTruncated, last)
		}
	}
}

// TestFirstChunkDamage damages the first chunk, which determines the layout.
func TestFirstChunkDamage(t *testing.T) {
	for _, layout := range allLayouts {
		whole := write(t, recordio.WriterOptions{Layout: layout}, words(30)...)
		for name, c := range map[string]struct {
			change   func(file []byte) []byte
			sentinel error
		}{
			"empty":       {func(f []byte) []byte { return nil }, recordio.ErrEmpty},
			"19 bytes":    {func(f []byte) []byte { return f[:19] }, recordio.ErrTruncated},
			"header only": {func(f []byte) []byte { return f[:20] }, recordio.ErrTruncated},
			"one short":   {func(f []byte) []byte { return f[:len(f)-1] }, recordio.ErrTruncated},
			"text":        {func(f []byte) []byte { return []byte("label,pixel0,pixel1,pixel2\n1,2,3,4\n") }, recordio.ErrBadMagic},
			"payload":     {func(f []byte) []byte { f[50]++; return f }, recordio.ErrBadChecksum},
		} {
			t.Run(layout.String()+"/"+name, func(t *testing.T) {
				file := c.change(bytes.Clone(whole))
				_, err := read(open(file))
				wantError(t, err, c.sentinel, 0)
				_, err = open(file).Index()
				wantError(t, err, c.sentinel, 0)
				_, err = open(file).Layout()
				wantError(t, err, c.sentinel, 0)
			})
		}
	}
}

// TestNeitherLayoutFits reads headers that fit two layouts or none. The error must name both attempts.
func TestNeitherLayoutFits(t *testing.T) {
	for name, c := range map[string]struct {
		header   []byte
		sentinel error
	}{
		"both are headers":       {header(0x01020304, 1, 1, 1, 50), recordio.ErrBadChecksum},
		"no compressor is known": {header(0x01020304, 9, 9, 9, 9), recordio.ErrBadCompressor},
	} {
		_, err := read(open(append(c.header, make([]byte, 60)...)))
		wantError(t, err, c.sentinel, 0)
		if err == nil || !strings.Contains(err.Error(), "no layout fits") {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

// A chunk of a TFRecord file is refused before a byte is read, also by readers of releases that know RecordIO only.
func TestChunkOfATFRecordFileIsRefused(t *testing.T) {
	for _, err := range recordio.NewFile(nil, 1000, "test.rec").Chunk(recordio.Index{Size: 40, Records: 2, Layout: recordio.TFRecord}) {
		wantError(t, err, recordio.ErrMalformed, 0)
		return
	}
	t.Error("expected an error")
}

// TestChunkRefusesOtherIndex reads chunks with index entries that do not match the file.
func TestChunkRefusesOtherIndex(t *testing.T) {
	whole := write(t, recordio.WriterOptions{RecordsPerChunk: 10}, words(30)...)
	index, err := open(whole).Index()
	if err != nil {
		t.Fatal(err)
	}
	first := func(f *recordio.File, ix recordio.Index) error {
		for _, err := range f.Chunk(ix) {
			return err
		}
		return nil
	}
	change := func(edit func(ix *recordio.Index)) recordio.Index {
		ix := index[1]
		edit(&ix)
		return ix
	}
	for name, ix := range map[string]recordio.Index{
		"offset":      change(func(ix *recordio.Index) { ix.Offset++ }),
		"past end":    change(func(ix *recordio.Index) { ix.Offset = int64(len(whole)) }),
		"size":        change(func(ix *recordio.Index) { ix.Size-- }),
		"records":     change(func(ix *recordio.Index) { ix.Records++ }),
		"compression": change(func(ix *recordio.Index) { ix.Compression = recordio.Gzip }),
		"layout":      change(func(ix *recordio.Index) { ix.Layout = recordio.Second }),
		"checksum":    change(func(ix *recordio.Index) { ix.Checksum++ }),
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, first(open(whole), ix), recordio.ErrChanged, ix.Offset)
		})
	}
	t.Run("file is shorter", func(t *testing.T) {
		err := first(open(whole[:index[1].End()-1]), index[1])
		wantError(t, err, recordio.ErrChanged, index[1].Offset)
		wantError(t, err, recordio.ErrTruncated, index[1].Offset)
	})
	t.Run("other payload", func(t *testing.T) {
		file := bytes.Clone(whole)
		file[index[1].Offset+30]++
		wantError(t, first(open(file), index[1]), recordio.ErrBadChecksum, index[1].Offset)
	})
	t.Run("whole file with other records of the same sizes", func(t *testing.T) {
		others := words(30)
		for _, record := range others {
			for i := range record {
				record[i] ^= 1
			}
		}
		file := write(t, recordio.WriterOptions{RecordsPerChunk: 10}, others...)
		wantError(t, first(open(file), index[1]), recordio.ErrChanged, index[1].Offset)
		unknown := change(func(ix *recordio.Index) { ix.Checksum = 0 }) // an index of an earlier release has no checksum
		if err := first(open(file), unknown); err != nil {
			t.Errorf("an index without a checksum gave %v", err)
		}
	})
	t.Run("nonsense", func(t *testing.T) {
		for _, ix := range []recordio.Index{{}, {Offset: -1, Layout: recordio.First}, {Offset: math.MaxInt64 - 10, Layout: recordio.First}} {
			if err := first(open(whole), ix); err == nil {
				t.Errorf("%+v was read", ix)
			}
		}
	})
}

// shrinking is a file that is truncated after it was opened.
type shrinking struct{ left []byte }

func (s shrinking) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(s.left).ReadAt(p, off)
}

func TestFileShrinksAfterOpen(t *testing.T) {
	whole := write(t, recordio.WriterOptions{RecordsPerChunk: 10}, words(30)...)
	index, err := open(whole).Index()
	if err != nil {
		t.Fatal(err)
	}
	f := recordio.NewFile(shrinking{whole[:index[2].Offset]}, int64(len(whole)), "test.rec")
	records, err := read(f)
	if err == nil || len(records) > 20 {
		t.Fatalf("file without its last third of 30 records: found %d records, error %v", len(records), err)
	}
	if !errors.Is(err, recordio.ErrTruncated) {
		t.Fatalf("error is %v", err)
	}
}

var errBroken = errors.New("input/output error")

type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error) { return 0, errBroken }

func TestReadErrorsAreKept(t *testing.T) {
	_, err := read(recordio.NewFile(broken{}, 1000, "test.rec"))
	wantError(t, err, errBroken, 0)
}

// endless is a header followed by zeros without end, for sizes that are too large to write.
type endless struct{ header []byte }

func (e endless) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off < int64(len(e.header)) {
		copy(p, e.header[off:])
	}
	return len(p), nil
}

// allocated returns the bytes that f allocates in total.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func header(words ...uint32) []byte {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

// TestDeclaredSizes covers the first half of F43: the reader allocates no memory for a size that is only declared.
func TestDeclaredSizes(t *testing.T) {
	const huge = math.MaxUint32
	for name, c := range map[string]struct {
		header   []byte
		sentinel error
	}{
		"payload, first layout":  {header(0x01020304, 1, 0, huge, 1), recordio.ErrTooLarge},
		"payload, second layout": {header(0x01020304, 1, 77, 1, huge), recordio.ErrTooLarge},
		"payload, compressed":    {header(0x01020304, 1, 2, huge, 1), recordio.ErrTooLarge},
		"records, compressed":    {header(0x01020304, 1, 2, 100, huge), recordio.ErrTooLarge},
		"records, uncompressed":  {header(0x01020304, 1, 0, 100, 26), recordio.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			f := recordio.NewFile(endless{c.header}, 1<<50, "test.rec")
			var err error
			if n := allocated(func() { _, err = read(f) }); n > 1<<20 {
				t.Errorf("%d bytes were allocated", n)
			}
			wantError(t, err, c.sentinel, 0)
		})
	}
	t.Run("a record", func(t *testing.T) {
		payload := append(header(huge), "short"...)
		for _, layout := range allLayouts {
			code := uint32(layout) - 1 // none
			_, err := read(open(chunk(layout, code, 1, payload)))
			wantError(t, err, recordio.ErrMalformed, 0)
		}
	})
}

func gzipped(plain io.Reader) []byte {
	var b bytes.Buffer
	z := stdgzip.NewWriter(&b)
	if _, err := io.Copy(z, plain); err != nil {
		panic(err)
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestBombs covers the second half of F43: payloads of a few kilobytes that decompress to much more.
func TestBombs(t *testing.T) {
	const limit = 1 << 20
	zeroFrame := func() []byte {
		block := s2.EncodeSnappy(nil, make([]byte, 64<<10))
		frame := header(uint32(4+len(block))<<8, 0) // the checksum is not read: the sum of the sizes is checked first
		return append(frame, block...)
	}()
	stream := []byte("\xff\x06\x00\x00sNaPpY")
	for name, c := range map[string]struct {
		layout   recordio.Layout
		code     uint32
		payload  []byte
		sentinel error
	}{
		"gzip":                       {recordio.First, 2, gzipped(io.LimitReader(zeros{}, 16<<20)), recordio.ErrTooLarge},
		"gzip, second layout":        {recordio.Second, 3, gzipped(io.LimitReader(zeros{}, 16<<20)), recordio.ErrTooLarge},
		"snappy frames":              {recordio.First, 1, append(stream, bytes.Repeat(zeroFrame, 100)...), recordio.ErrTooLarge},
		"snappy block":               {recordio.Second, 2, s2.EncodeSnappy(nil, make([]byte, 2<<20)), recordio.ErrTooLarge},
		"snappy block of wrong size": {recordio.Second, 2, []byte("\xff\xff\xff\xff\x0fabc"), recordio.ErrMalformed},
		"snappy frame of wrong size": {recordio.First, 1, append(bytes.Clone(stream), "\x00\x0a\x00\x00....\xff\xff\x03abc"...), recordio.ErrMalformed},
		"snappy frame, over 64 KiB":  {recordio.First, 1, append(bytes.Clone(stream), bigFrame()...), recordio.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			f := open(chunk(c.layout, c.code, 1, c.payload))
			f.MaxChunkBytes = limit
			var err error
			if n := allocated(func() { _, err = read(f) }); n > 4*limit {
				t.Errorf("%d bytes were allocated under a limit of %d", n, limit)
			}
			wantError(t, err, c.sentinel, 0)
		})
	}
}

func bigFrame() []byte {
	plain := make([]byte, 64<<10+1)
	return append(header(uint32(4+len(plain))<<8|1, 0), plain...)
}

// TestMalformedPayloads reads payloads with a valid checksum, as a faulty writer produces them.
func TestMalformedPayloads(t *testing.T) {
	one := append(header(3), "abc"...)
	stream := "\xff\x06\x00\x00sNaPpY"
	for name, c := range map[string]struct {
		code    uint32
		records uint32
		payload []byte
	}{
		"fewer records than declared": {0, 2, append(bytes.Clone(one), 1, 0)},
		"more records than declared":  {0, 1, append(bytes.Clone(one), one...)},
		"bytes without records":       {0, 0, one},
		"no gzip":                     {2, 1, one},
		"gzip with a tail":            {2, 1, append(gzipped(bytes.NewReader(one)), "tail"...)},
		"torn gzip":                   {2, 1, gzipped(bytes.NewReader(one))[:20]},
		"no snappy identifier":        {1, 1, []byte("\x01\x0b\x00\x00....")},
		"wrong snappy identifier":     {1, 1, []byte("\xff\x06\x00\x00sNaPpX")},
		"torn snappy frame header":    {1, 1, []byte(stream + "\x01")},
		"torn snappy frame":           {1, 1, []byte(stream + "\x01\xff\x00\x00abc")},
		"snappy frame without sum":    {1, 1, []byte(stream + "\x01\x03\x00\x00abc")},
		"snappy frame with wrong sum": {1, 1, []byte(stream + "\x01\x07\x00\x00....abc")},
		"reserved snappy frame":       {1, 1, []byte(stream + "\x02\x00\x00\x00")},
		"snappy frame not decodable":  {1, 1, []byte(stream + "\x00\x08\x00\x00....\x05\xff\xff\xff")},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(open(chunk(recordio.First, c.code, c.records, c.payload)))
			wantError(t, err, recordio.ErrMalformed, 0)
		})
	}
}

// TestForeignWriters reads valid encodings that other implementations write and this package does not.
func TestForeignWriters(t *testing.T) {
	one := append(header(3), "abc"...)
	two := append(header(2), "de"...)
	stream := "\xff\x06\x00\x00sNaPpY"
	frame := func(plain []byte) []byte {
		sum := crc32.Checksum(plain, crc32.MakeTable(crc32.Castagnoli))
		sum = (sum>>15 | sum<<17) + 0xa282ead8
		return append(header(uint32(4+len(plain))<<8|1, sum), plain...)
	}
	concat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, c := range map[string]struct {
		layout  recordio.Layout
		code    uint32
		records uint32
		payload []byte
		want    int
	}{
		"gzip of several members":      {recordio.First, 2, 2, concat(gzipped(bytes.NewReader(one)), gzipped(bytes.NewReader(two))), 2},
		"a record across frames":       {recordio.First, 1, 1, concat([]byte(stream), frame(one[:5]), frame(one[5:])), 1},
		"a repeated identifier":        {recordio.First, 1, 2, concat([]byte(stream), frame(one), []byte(stream), frame(two)), 2},
		"padding and skippable frames": {recordio.First, 1, 1, concat([]byte(stream), []byte("\xfe\x02\x00\x00??"), frame(one), []byte("\x80\x00\x00\x00")), 1},
		"an empty chunk":               {recordio.First, 0, 0, nil, 0},
		"an empty compressed chunk":    {recordio.First, 1, 0, nil, 0},
		"an empty chunk, fluid":        {recordio.Fluid, 0, 0, nil, 0},
		"fluid, framed snappy":         {recordio.Fluid, 1, 1, concat([]byte(stream), frame(one[:5]), frame(one[5:])), 1},
		"fluid, gzip":                  {recordio.Fluid, 2, 1, gzipped(bytes.NewReader(one)), 1},
		"an empty chunk, second":       {recordio.Second, 1, 0, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mustRead(t, chunk(c.layout, c.code, c.records, c.payload)); len(got) != c.want {
				t.Errorf("%d records, want %d", len(got), c.want)
			}
		})
	}
}
