package tfrecord

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"trainmaster/recordio"
)

const (
	bufferBytes = 256 << 10
	// keptBuffer is the largest buffer that the pool keeps, after large records.
	keptBuffer = 1 << 20
	// Records of largeRecord bytes are skipped by reading only their headers. Smaller ones are read in blocks.
	largeRecord = 16 << 10
)

var bufferPool = sync.Pool{New: func() any {
	b := make([]byte, bufferBytes)
	return &b
}}

// scanner walks the records of data, in order. Its position is always inside [0, end] if end is known.
type scanner struct {
	in     io.Reader
	seeker io.Seeker // of in, or nil if bytes must be read to skip them
	end    int64     // offset at which the data ends, or -1 of compressed data
	limit  int64     // of the length of a record

	pooled *[]byte
	buffer []byte
	r, w   int // buffer[r:w] is read and not used
	ahead  int // bytes to read in addition to the bytes that fill needs

	offset int64             // of buffer[r]
	start  int64             // of the current record in the data
	number int64             // of the current record, from 0
	sums   [2 * crcSize]byte // the stored checksums of the previous record
}

func newScanner(in io.Reader, seeker io.Seeker, offset, end, limit int64) *scanner {
	pooled := bufferPool.Get().(*[]byte)
	return &scanner{in: in, seeker: seeker, offset: offset, end: end, limit: limit, pooled: pooled, buffer: *pooled, ahead: bufferBytes}
}

// release gives the buffer back.
func (s *scanner) release() {
	if len(s.buffer) <= keptBuffer {
		*s.pooled = s.buffer
	}
	bufferPool.Put(s.pooled)
	s.pooled, s.buffer = nil, nil
}

// fill makes n bytes available at buffer[r:]. At the end of the data it returns io.EOF, with fewer bytes available.
func (s *scanner) fill(n int) error {
	if s.w-s.r >= n {
		return nil
	}
	if s.r+n > len(s.buffer) || s.r == s.w {
		s.w = copy(s.buffer, s.buffer[s.r:s.w])
		s.r = 0
	}
	for s.w < s.r+n {
		if s.w == len(s.buffer) || s.end >= 0 && s.r+n > len(s.buffer) {
			s.grow(n)
		}
		need := min(s.r+n, len(s.buffer)) - s.w
		m, err := io.ReadAtLeast(s.in, s.buffer[s.w:min(len(s.buffer), s.w+max(need, s.ahead))], need)
		s.w += m
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return io.EOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// grow makes room for a record of n bytes. If the end of the data is not known, the room doubles instead: a wrong length must
// not take memory for bytes that the file does not have.
func (s *scanner) grow(n int) {
	size := s.r + n
	//guard:decompressed-record-grows
	if s.end < 0 {
		size = min(size, 2*len(s.buffer))
	}
	larger := make([]byte, size)
	copy(larger, s.buffer[:s.w])
	s.buffer = larger
}

// use advances by n bytes that fill made available.
func (s *scanner) use(n int) []byte {
	b := s.buffer[s.r : s.r+n : s.r+n]
	s.r += n
	s.offset += int64(n)
	return b
}

// header reads the header of the next record and returns its length, which is at most the limit, and for which the file
// has enough bytes if its size is known. At the end of the data it returns io.EOF.
func (s *scanner) header() (length int, err error) {
	s.start = s.offset
	if err := s.fill(headerSize); err != nil {
		//guard:partial-header-is-error
		if found := int64(s.w - s.r); errors.Is(err, io.EOF) && found > 0 {
			err = truncated(headerSize, "length and checksum", found)
		}
		return 0, err
	}
	header := s.use(headerSize)
	//guard:record-length-checksum
	if computed, stored := lengthChecksums(header); computed != stored {
		action := restoreFile
		if s.start == 0 {
			action += ", or name a TFRecord file"
		}
		return 0, badChecksum("length", computed, stored, action)
	}
	n := binary.LittleEndian.Uint64(header)
	//guard:record-length-limit
	if n > uint64(s.limit) {
		return 0, fmt.Errorf("%w: expected a record of at most %d bytes, found %d: write smaller records", recordio.ErrTooLarge, s.limit, n)
	}
	//guard:record-within-file
	if s.end >= 0 && s.end-s.offset < int64(n)+crcSize {
		return 0, truncated(n+crcSize, "data and checksum", s.end-s.offset)
	}
	copy(s.sums[:crcSize], header[lengthSize:])
	return int(n), nil
}

// next returns the next record, which is valid until the next call, after it verified both checksums. After the last record it
// returns io.EOF.
func (s *scanner) next() ([]byte, error) {
	length, err := s.header()
	if err != nil {
		return nil, err
	}
	if err := s.fill(length + crcSize); err != nil {
		return nil, s.cutShort(err, uint64(length)+crcSize)
	}
	data := s.use(length + crcSize)
	record, footer := data[:length:length], data[length:]
	//guard:record-data-checksum
	if computed, stored := maskedCRC(record), binary.LittleEndian.Uint32(footer); computed != stored {
		return nil, badChecksum("data", computed, stored, restoreFile)
	}
	copy(s.sums[crcSize:], footer)
	s.number++
	return record, nil
}

// skip passes the next record without a look at its data. After the last record it returns io.EOF.
func (s *scanner) skip() error {
	length, err := s.header()
	if err != nil {
		return err
	}
	s.ahead = bufferBytes
	if length >= largeRecord && s.seeker != nil {
		s.ahead = crcSize + headerSize // of the next record
	}
	if err := s.discard(length); err != nil {
		return s.cutShort(err, uint64(length)+crcSize)
	}
	if err := s.fill(crcSize); err != nil {
		return s.cutShort(err, uint64(length)+crcSize)
	}
	copy(s.sums[crcSize:], s.use(crcSize))
	s.number++
	return nil
}

// addTo returns the checksum of a chunk with the record that next or skip passed.
func (s *scanner) addTo(checksum uint32) uint32 {
	return crc32.Update(checksum, castagnoli, s.sums[:])
}

// cutShort explains the end of the data inside a record.
func (s *scanner) cutShort(err error, want uint64) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	return truncated(want, "data and checksum", s.offset+int64(s.w-s.r)-s.start-headerSize)
}

// discard advances by n bytes.
func (s *scanner) discard(n int) error {
	if s.seeker != nil && n-(s.w-s.r) >= largeRecord {
		if _, err := s.seeker.Seek(int64(n-(s.w-s.r)), io.SeekCurrent); err != nil {
			return err
		}
		s.r, s.w = 0, 0
		s.offset += int64(n)
		return nil
	}
	for n > 0 {
		if err := s.fill(1); err != nil {
			return err
		}
		n -= len(s.use(min(n, s.w-s.r)))
	}
	return nil
}
