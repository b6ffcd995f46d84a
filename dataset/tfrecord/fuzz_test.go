package tfrecord_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
)

// cut splits data into records. The first byte of each record is its length.
func cut(data []byte) (records [][]byte) {
	for len(data) > 0 {
		n := min(int(data[0]), len(data)-1)
		records = append(records, data[1:1+n])
		data = data[1+n:]
	}
	return records
}

// FuzzRoundTrip writes records and reads them from the file and from its chunks.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("\x05Hello\x06World!\x00"), uint8(0), uint16(0), uint8(2))
	f.Add(bytes.Repeat([]byte("\x03abc"), 300), uint8(1), uint16(64), uint8(0))
	f.Add(bytes.Repeat([]byte("\x00"), 30), uint8(2), uint16(1), uint8(7))
	f.Fuzz(func(t *testing.T, data []byte, kind uint8, chunkBytes uint16, perChunk uint8) {
		records := cut(data)
		file := open(write(t, allCompressions[kind%3], records...))
		if got, err := collect(file.Records()); err != nil || !equal(got, records) {
			t.Fatalf("wrote %q, read %q, %v", records, got, err)
		}
		index, err := file.Index(t.Context(), tfrecord.IndexOptions{ChunkBytes: int64(chunkBytes), RecordsPerChunk: int64(perChunk)})
		if err != nil {
			t.Fatal(err)
		}
		var chunks [][]byte
		for _, c := range index {
			got, err := collect(file.Chunk(c))
			if err != nil || int64(len(got)) != c.Records || c.First != int64(len(chunks)) {
				t.Fatalf("read %d records of %+v after %d, %v", len(got), c, len(chunks), err)
			}
			chunks = append(chunks, got...)
		}
		if !equal(chunks, records) {
			t.Fatalf("wrote %q, the chunks have %q", records, chunks)
		}
	})
}

// FuzzBitFlip flips one bit of a file that is not compressed. The reader must return an error, and the records before the
// error must be correct.
func FuzzBitFlip(f *testing.F) {
	f.Add([]byte("\x05Hello\x06World!\x00"), uint32(70))
	f.Add(bytes.Repeat([]byte("\x03abc"), 300), uint32(20000))
	f.Fuzz(func(t *testing.T, data []byte, bit uint32) {
		records := cut(data)
		if len(records) == 0 {
			return
		}
		file := write(t, tfrecord.None, records...)
		bit %= uint32(8 * len(file))
		file[bit/8] ^= 1 << (bit % 8)
		got, err := collect(open(file).Records())
		if _, ok := errors.AsType[*tfrecord.Error](err); !ok {
			t.Fatalf("flipped bit %d of a file of %d bytes: found %v, expected an error with its position", bit, len(file), err)
		}
		if len(got) > len(records) || !equal(got, records[:len(got)]) {
			t.Fatalf("wrong records were delivered before %v", err)
		}
	})
}

// FuzzReader reads arbitrary bytes, also after a valid header: no panic, no more memory than the limit, a position in every error,
// and an index that covers all records that a reader delivers.
func FuzzReader(f *testing.F) {
	for _, c := range allCompressions {
		f.Add(write(f, c, text(9)...), uint64(20), uint16(0))
	}
	f.Add([]byte("\x1f\x8b\x08\x00"), uint64(1<<63), uint16(3))
	f.Add([]byte("\x78\x9c"), uint64(1<<20-4), uint16(3))
	f.Fuzz(func(t *testing.T, file []byte, length uint64, chunkBytes uint16) {
		for _, file := range [][]byte{
			file,
			slices.Concat(header(length), file), // past the checksum of a length
			slices.Concat(header(uint64(len(file))), file, file),
			gzipped(t, file),
		} {
			r := open(file)
			r.MaxRecordBytes = 1 << 20
			got, err := collect(r.Records())
			index, indexErr := r.Index(t.Context(), tfrecord.IndexOptions{ChunkBytes: int64(chunkBytes)})
			for _, err := range []error{err, indexErr} {
				if _, ok := errors.AsType[*tfrecord.Error](err); err != nil && !ok {
					t.Fatalf("error %v: expected the file and the position", err)
				}
			}
			if indexErr != nil {
				if err == nil {
					t.Fatalf("all records were read, the index has the error %v", indexErr)
				}
				continue
			}
			n := int64(0)
			for _, c := range index {
				n += c.Records
			}
			if n < int64(len(got)) || err == nil && n != int64(len(got)) {
				t.Fatalf("read %d records, %v, the index has %d", len(got), err, n)
			}
			if err != nil && !errors.Is(err, recordio.ErrBadChecksum) {
				t.Fatalf("the index has no error, reading has %v: expected a bad checksum of data", err)
			}
		}
	})
}
