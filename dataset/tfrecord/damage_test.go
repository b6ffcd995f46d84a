package tfrecord_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
)

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// goldenFile returns the file that golden has in hexadecimal.
func goldenFile(t testing.TB) []byte {
	t.Helper()
	file, err := hex.DecodeString(golden)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// The records of goldenFile begin here.
var goldenOffsets = []int64{0, 21, 37}

// header returns a record's length with its checksum, from a table: a writer refuses lengths that are too large.
func header(length uint64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, length)
	crc := ^uint32(0)
	for _, c := range b {
		crc ^= uint32(c)
		for range 8 {
			crc = crc>>1 ^ 0x82f63b78*(crc&1)
		}
	}
	crc = ^crc
	return binary.LittleEndian.AppendUint32(b, (crc>>15|crc<<17)+0xa282ead8)
}

// wantError checks what an error says about its position.
func wantError(t *testing.T, err, sentinel error, record, offset int64) {
	t.Helper()
	where, ok := errors.AsType[*tfrecord.Error](err)
	switch {
	case !errors.Is(err, sentinel):
		t.Errorf("error is %v, expected %v", err, sentinel)
	case !ok:
		t.Errorf("error %v: expected the file and the position", err)
	case where.File != "a.tfrecord" || where.Record != record || where.Offset != offset:
		t.Errorf("error is about %s, record %d, byte %d: expected a.tfrecord, record %d, byte %d", where.File, where.Record, where.Offset, record, offset)
	}
}

// TestDamage covers F40: each flipped bit of a file is an error with its position, and all records before it are delivered.
func TestDamage(t *testing.T) {
	whole := goldenFile(t)
	for bit := range 8 * len(whole) {
		file := bytes.Clone(whole)
		file[bit/8] ^= 1 << (bit % 8)
		at := 2
		for goldenOffsets[at] > int64(bit/8) {
			at--
		}
		got, err := collect(open(file).Records())
		wantError(t, err, recordio.ErrBadChecksum, int64(at), goldenOffsets[at])
		if !equal(got, goldenRecords[:at]) {
			t.Errorf("flipped bit %d: read %q, expected %q", bit, got, goldenRecords[:at])
		}
		_, err = open(file).Index(t.Context(), tfrecord.IndexOptions{})
		if int64(bit/8) < goldenOffsets[at]+12 {
			wantError(t, err, recordio.ErrBadChecksum, int64(at), goldenOffsets[at])
		} else if err != nil {
			t.Errorf("flipped bit %d of data: the index has the error %v", bit, err)
		}
	}
}

// TestDamageOfCompressedFile covers F40: each flipped bit of a compressed file is an error, unless the bit has no meaning, such as the time of
// a gzip header. Records before the error are as written.
func TestDamageOfCompressedFile(t *testing.T) {
	records := text(30)
	for _, c := range allCompressions[1:] {
		whole := write(t, c, records...)
		meaningless := 0
		for bit := range 8 * len(whole) {
			file := bytes.Clone(whole)
			file[bit/8] ^= 1 << (bit % 8)
			got, err := collect(open(file).Records())
			if len(got) > len(records) || !equal(got, records[:len(got)]) || err == nil && len(got) < len(records) {
				t.Errorf("%s: flipped bit %d: read %d records that differ, %v", c, bit, len(got), err)
			}
			if err == nil {
				meaningless++
				continue
			}
			if _, ok := errors.AsType[*tfrecord.Error](err); !ok {
				t.Errorf("%s: flipped bit %d: error %v, expected the file and the position", c, bit, err)
			}
		}
		if meaningless > 8*10 {
			t.Errorf("%s: %d flipped bits changed nothing, expected bits of the header at most", c, meaningless)
		}
	}
}

// TestTruncation covers F40: a file that ends inside a record is an error of that record, for readers and for the index.
func TestTruncation(t *testing.T) {
	whole := goldenFile(t)
	for size := range whole {
		file := whole[:size]
		at := slices.Index(goldenOffsets, int64(size))
		records, err := collect(open(file).Records())
		_, indexErr := open(file).Index(t.Context(), tfrecord.IndexOptions{})
		if at >= 0 {
			if err != nil || indexErr != nil || !equal(records, goldenRecords[:at]) {
				t.Errorf("%d bytes, cut between records: read %q, %v, %v", size, records, err, indexErr)
			}
			continue
		}
		at = 2
		for goldenOffsets[at] > int64(size) {
			at--
		}
		wantError(t, err, recordio.ErrTruncated, int64(at), goldenOffsets[at])
		wantError(t, indexErr, recordio.ErrTruncated, int64(at), goldenOffsets[at])
		if !equal(records, goldenRecords[:at]) {
			t.Errorf("%d bytes: read %q, expected %q", size, records, goldenRecords[:at])
		}
		compressed, compressedErr := collect(open(gzipped(t, file)).Records()) // whole as a gzip file
		wantError(t, compressedErr, recordio.ErrTruncated, int64(at), goldenOffsets[at])
		if !equal(compressed, goldenRecords[:at]) {
			t.Errorf("%d bytes, compressed: read %q, expected %q", size, compressed, goldenRecords[:at])
		}
	}
	for _, c := range allCompressions[1:] {
		whole := write(t, c, text(30)...)
		for size := 3; size < len(whole); size++ {
			_, err := collect(open(whole[:size]).Records())
			_, indexErr := open(whole[:size]).Index(t.Context(), tfrecord.IndexOptions{})
			if !errors.Is(err, recordio.ErrTruncated) || !errors.Is(indexErr, recordio.ErrTruncated) {
				t.Errorf("%s, %d of %d bytes: found %v and %v, expected %v", c, size, len(whole), err, indexErr, recordio.ErrTruncated)
			}
		}
		_, err := collect(open(append(bytes.Clone(whole), "more than the data"...)).Records())
		if !errors.Is(err, recordio.ErrMalformed) {
			t.Errorf("%s: more bytes after the data: found %v, expected %v", c, err, recordio.ErrMalformed)
		}
	}
}

// allocated returns the bytes that a function allocates.
func allocated(work func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A length that the file does not have, with a valid checksum, takes no memory.
func TestWrongLengthTakesNoMemory(t *testing.T) {
	start := write(t, tfrecord.None, []byte("x"))
	for _, test := range []struct {
		length uint64
		want   error
	}{
		{1 << 63, recordio.ErrTooLarge},
		{1<<64 - 1, recordio.ErrTooLarge},
		{1<<63 - 5, recordio.ErrTooLarge},
		{tfrecord.DefaultMaxRecordBytes + 1, recordio.ErrTooLarge},
		{tfrecord.DefaultMaxRecordBytes, recordio.ErrTruncated},
		{200 << 20, recordio.ErrTruncated},
		{1, recordio.ErrTruncated},
	} {
		plain := slices.Concat(start, header(test.length))
		if test.length > 1 {
			plain = append(plain, make([]byte, 300<<10)...) // more than the buffer has room for
		}
		for _, file := range [][]byte{plain, gzipped(t, plain)} {
			f := open(file)
			var err, indexErr error
			bytes := allocated(func() {
				_, err = collect(f.Records())
				_, indexErr = f.Index(t.Context(), tfrecord.IndexOptions{})
			})
			wantError(t, err, test.want, 1, int64(len(start)))
			wantError(t, indexErr, test.want, 1, int64(len(start)))
			if bytes > 4<<20 {
				t.Errorf("a length of %d: %d bytes were allocated, expected the buffers only", test.length, bytes)
			}
		}
	}
	f := open(write(t, tfrecord.None, make([]byte, 11)))
	f.MaxRecordBytes = 10
	_, err := collect(f.Records())
	wantError(t, err, recordio.ErrTooLarge, 0, 0)
}

func TestErrorsSayWhatToDo(t *testing.T) {
	whole := goldenFile(t)
	damaged := func(at int) []byte {
		file := bytes.Clone(whole)
		file[at] ^= 0x10
		return file
	}
	const where, again = "a.tfrecord: record ", "copy the file again, or write it again if its writer was stopped"
	for _, test := range []struct {
		file []byte
		want string
	}{
		{damaged(0), "0, byte 0: bad checksum of the length: expected 0x2b6babd6, found 0x3e04b2ea: restore the file from its source, or name a TFRecord file"},
		{damaged(12), "0, byte 0: bad checksum of the data: expected 0x821308ce, found 0xbeb9ee8a: restore the file from its source"},
		{damaged(37 + 8), "2, byte 37: bad checksum of the length: expected 0x340b2778, found 0x340b2768: restore the file from its source"},
		{whole[:len(whole)-1], "2, byte 37: truncated: expected 6 bytes (data and checksum), found 5: " + again},
		{whole[:24], "1, byte 21: truncated: expected 12 bytes (length and checksum), found 3: " + again},
		{gzipped(t, whole[:24]), "1, byte 21 of the decompressed data: truncated: expected 12 bytes (length and checksum), found 3: " + again},
		{header(1 << 40), "0, byte 0: too large: expected a record of at most 268435456 bytes, found 1099511627776: write smaller records"},
	} {
		if _, err := collect(open(test.file).Records()); err == nil || err.Error() != where+test.want {
			t.Errorf("found    %v\nexpected %s%s", err, where, test.want)
		}
	}
	_, err := collect(tfrecord.NewFile(bytes.NewReader(whole), 5, "").Records())
	if err == nil || !strings.HasPrefix(err.Error(), "record 0, byte 0: truncated") {
		t.Errorf("found %v, expected an error without the name of a file", err)
	}
}

// A chunk of a file that was replaced is an error, also if the new records have the same lengths or valid checksums.
func TestChunkOfChangedFile(t *testing.T) {
	records := [][]byte{[]byte("first"), []byte("second"), []byte("third"), []byte("fourth")}
	whole := write(t, tfrecord.None, records...)
	options := tfrecord.IndexOptions{RecordsPerChunk: 2}
	index, err := open(whole).Index(t.Context(), options)
	if err != nil || len(index) != 2 {
		t.Fatal(index, err)
	}
	packed := write(t, tfrecord.Gzip, records...)
	packedIndex, err := open(packed).Index(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		file  []byte
		chunk tfrecord.Chunk
	}{
		"same lengths":         {write(t, tfrecord.None, []byte("first"), []byte("second"), []byte("THIRD"), []byte("fourth")), index[1]},
		"other lengths":        {write(t, tfrecord.None, []byte("first"), []byte("second"), []byte("thir"), []byte("dfourth")), index[1]},
		"other boundaries":     {write(t, tfrecord.None, bytes.Repeat([]byte("x"), 200)), index[1]},
		"one record instead":   {write(t, tfrecord.None, []byte("first"), []byte("second"), make([]byte, index[1].Size-16)), index[1]},
		"shorter":              {whole[:len(whole)-1], index[1]},
		"empty":                {nil, index[0]},
		"compressed since":     {packed, index[0]},
		"not compressed":       {whole, packedIndex[0]},
		"other compressed":     {write(t, tfrecord.Gzip, []byte("first")), packedIndex[0]},
		"an offset before 0":   {whole, tfrecord.Chunk{Offset: -4, Size: 8}},
		"a size that overflow": {whole, tfrecord.Chunk{Offset: 4, Size: 1<<63 - 1}},
	} {
		if _, err := collect(open(test.file).Chunk(test.chunk)); !errors.Is(err, recordio.ErrChanged) {
			t.Errorf("%s: found %v, expected %v", name, err, recordio.ErrChanged)
		}
	}
	damaged := bytes.Clone(whole)
	damaged[len(damaged)-5] ^= 1
	got, err := collect(open(damaged).Chunk(index[1]))
	wantError(t, err, recordio.ErrBadChecksum, 3, index[1].Offset+21)
	if errors.Is(err, recordio.ErrChanged) || !equal(got, records[2:3]) {
		t.Errorf("damaged data: read %q, %v, expected damage that an index does not find", got, err)
	}
}

// failingReader has an error at an offset.
type failingReader struct {
	io.ReaderAt
	at  int64
	err error
}

func (r *failingReader) ReadAt(p []byte, at int64) (int, error) {
	if at+int64(len(p)) > r.at {
		n, _ := r.ReaderAt.ReadAt(p[:max(0, r.at-at)], at)
		return n, r.err
	}
	return r.ReaderAt.ReadAt(p, at)
}

// An error of reading is not treated as the end of a file or as damage.
func TestReadErrorIsPassedOn(t *testing.T) {
	broken := errors.New("broken disk")
	for _, c := range allCompressions {
		whole := write(t, c, text(30)...)
		for _, at := range []int64{0, 5, int64(len(whole)) - 1} {
			r := &failingReader{bytes.NewReader(whole), at, broken}
			f := tfrecord.NewFile(r, int64(len(whole)), "a.tfrecord")
			_, err := collect(f.Records())
			_, indexErr := f.Index(t.Context(), tfrecord.IndexOptions{})
			for _, err := range []error{err, indexErr} {
				if !errors.Is(err, broken) || errors.Is(err, recordio.ErrTruncated) || !strings.Contains(err.Error(), "a.tfrecord") {
					t.Errorf("%s, byte %d: found %v, expected %v with the file", c, at, err, broken)
				}
			}
			if at == 0 {
				if _, err := f.Recognize(); !errors.Is(err, broken) {
					t.Errorf("%s: recognize: found %v, expected %v", c, err, broken)
				}
			}
		}
	}
}
