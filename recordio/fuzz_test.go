package recordio_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"trainmaster/recordio"
)

// fuzzOptions converts fuzzed numbers to valid options for about ten chunks, because a gzip writer is slow to reset.
func fuzzOptions(size int, layout, compression bool, kind uint8, chunkBytes, perChunk uint16) recordio.WriterOptions {
	o := recordio.WriterOptions{Compression: recordio.Compression(kind % 3), Layout: recordio.First}
	if chunkBytes > 0 {
		o.ChunkBytes = max(int(chunkBytes), size/5)
	}
	if perChunk > 0 {
		o.RecordsPerChunk = max(int(perChunk), size/5)
	}
	if layout {
		o.Layout = recordio.Second + recordio.Layout(kind/3%2)
	}
	if !compression {
		o.Compression = recordio.None
	}
	return o
}

// cut splits data into records. The first byte of each record is its length.
func cut(data []byte) (records [][]byte) {
	for len(data) > 0 {
		n := min(int(data[0]), len(data)-1)
		records = append(records, data[1:1+n])
		data = data[1+n:]
	}
	return records
}

func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("\x05Hello\x06World!\x00"), false, true, uint8(1), uint16(0), uint16(0))
	f.Add(bytes.Repeat([]byte("\x03abc"), 300), true, true, uint8(2), uint16(64), uint16(3))
	f.Fuzz(func(t *testing.T, data []byte, layout, compression bool, kind uint8, chunkBytes, perChunk uint16) {
		records := cut(data)
		file := write(t, fuzzOptions(len(data), layout, compression, kind, chunkBytes, perChunk), records...)
		got, err := read(open(file))
		if len(records) == 0 {
			if !errors.Is(err, recordio.ErrEmpty) {
				t.Fatalf("a file without records gave %v", err)
			}
			return
		}
		if err != nil || !equal(got, records) {
			t.Fatalf("wrote %q, read %q, %v", records, got, err)
		}
	})
}

// FuzzBitFlip flips one bit. The reader must return an error, and the records before the error must be correct.
func FuzzBitFlip(f *testing.F) {
	f.Add([]byte("\x05Hello\x06World!\x00"), false, true, uint8(1), uint16(8), uint32(70))
	f.Add(bytes.Repeat([]byte("\x03abc"), 300), true, true, uint8(2), uint16(64), uint32(200))
	f.Fuzz(func(t *testing.T, data []byte, layout, compression bool, kind uint8, chunkBytes uint16, bit uint32) {
		records := cut(data)
		if len(records) == 0 {
			return
		}
		file := write(t, fuzzOptions(len(data), layout, compression, kind, chunkBytes, 0), records...)
		bit %= uint32(8 * len(file))
		file[bit/8] ^= 1 << (bit % 8)
		got, err := read(open(file))
		if err == nil {
			t.Fatalf("flipped bit %d of a file of %d bytes: expected an error", bit, len(file))
		}
		if _, ok := errors.AsType[*recordio.Error](err); !ok {
			t.Fatalf("error %v: expected the file and the offset", err)
		}
		if len(got) > len(records) || !equal(got, records[:len(got)]) {
			t.Fatalf("wrong records were delivered before %v", err)
		}
	})
}

// FuzzTruncation truncates a file. A cut between chunks leaves whole chunks. Every other cut is an error.
func FuzzTruncation(f *testing.F) {
	f.Add([]byte("\x05Hello\x06World!\x00"), false, true, uint8(1), uint16(8), uint32(30))
	f.Add(bytes.Repeat([]byte("\x03abc"), 300), true, false, uint8(2), uint16(64), uint32(84))
	f.Fuzz(func(t *testing.T, data []byte, layout, compression bool, kind uint8, chunkBytes uint16, length uint32) {
		records := cut(data)
		if len(records) == 0 {
			return
		}
		file := write(t, fuzzOptions(len(data), layout, compression, kind, chunkBytes, 0), records...)
		index, err := open(file).Index()
		if err != nil {
			t.Fatal(err)
		}
		length %= uint32(len(file))
		got, err := read(open(file[:length]))
		whole := slices.IndexFunc(index, func(ix recordio.Index) bool { return ix.End() > int64(length) })
		n := 0
		for _, ix := range index[:whole] {
			n += int(ix.Records)
		}
		if !equal(got, records[:n]) {
			t.Fatalf("expected %[3]d records of a file cut at %[2]d, found %[1]d", len(got), length, n)
		}
		atBoundary := length > 0 && index[whole].Offset == int64(length)
		switch {
		case atBoundary && err != nil:
			t.Fatalf("cut between chunks: %v", err)
		case length == 0 && !errors.Is(err, recordio.ErrEmpty):
			t.Fatalf("cut to nothing: %v", err)
		case length > 0 && !atBoundary && !errors.Is(err, recordio.ErrTruncated):
			t.Fatalf("cut inside a chunk at %d: %v", length, err)
		}
	})
}

// FuzzReader reads arbitrary bytes: no panic, no more memory than the limit, and a position in every error.
func FuzzReader(f *testing.F) {
	for _, layout := range allLayouts {
		for _, compression := range allCompressions {
			f.Add(write(f, recordio.WriterOptions{Layout: layout, Compression: compression, RecordsPerChunk: 2}, words(5)...), uint32(1), []byte{})
		}
	}
	f.Fuzz(func(t *testing.T, file []byte, code uint32, payload []byte) {
		for _, file := range [][]byte{
			file,
			chunk(recordio.First, code%3, uint32(len(file)), payload), // past the checksum
			chunk(recordio.Second, code%3+1, uint32(len(file)), payload),
			chunk(recordio.Fluid, code%3, uint32(len(file)), payload),
		} {
			r := open(file)
			r.MaxChunkBytes = 1 << 20
			if _, err := read(r); err != nil {
				if _, ok := errors.AsType[*recordio.Error](err); !ok {
					t.Fatalf("error %v: expected the file and the offset", err)
				}
			}
			if index, err := r.Index(); err == nil && len(index) > 0 && index[len(index)-1].End() != int64(len(file)) {
				t.Fatalf("the index ends at %d, the file at %d", index[len(index)-1].End(), len(file))
			}
		}
	})
}
