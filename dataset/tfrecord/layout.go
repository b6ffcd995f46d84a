package tfrecord

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Sizes of the parts of a record, in bytes.
const (
	lengthSize = 8
	crcSize    = 4
	headerSize = lengthSize + crcSize // a length and its checksum
	// Overhead is what a record takes in a file in addition to its data.
	Overhead = headerSize + crcSize
)

// DefaultMaxRecordBytes bounds the memory that one record may take.
const DefaultMaxRecordBytes = 256 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskedCRC returns the checksum as the format stores it. The mask changes a CRC so that data that contains CRCs has no
// predictable CRC.
func maskedCRC(data []byte) uint32 {
	crc := crc32.Checksum(data, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}

// appendHeader appends the header of a record of length bytes.
func appendHeader(b []byte, length uint64) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint64(b, length)
	return binary.LittleEndian.AppendUint32(b, maskedCRC(b[start:]))
}

// lengthChecksums returns the checksum of the length in a header, and the checksum that is stored after it.
func lengthChecksums(header []byte) (computed, stored uint32) {
	return maskedCRC(header[:lengthSize]), binary.LittleEndian.Uint32(header[lengthSize:])
}

// Compression is the compression of a file as a whole.
type Compression uint8

// Compressions of a file.
const (
	None Compression = iota
	Gzip
	Zlib
)

func (c Compression) String() string {
	switch c {
	case None:
		return "none"
	case Gzip:
		return "gzip"
	case Zlib:
		return "zlib"
	}
	return fmt.Sprintf("compression %d", uint8(c))
}
