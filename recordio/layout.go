package recordio

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Compression is the storage form of a chunk's payload. The numbers are the codes of this package's API and of the first and
// the Fluid layout; the second layout has other codes in its files.
type Compression uint8

const (
	None   Compression = iota // records as they are
	Snappy                    // second layout: one block; others: framed stream
	Gzip
	Zlib // of a TFRecord file; no chunk of a RecordIO file has it
)

var compressionNames = [...]string{None: "none", Snappy: "snappy", Gzip: "gzip"}

func (c Compression) valid() bool { return int(c) < len(compressionNames) }

func (c Compression) String() string {
	if c == Zlib {
		return "zlib"
	}
	if !c.valid() {
		return fmt.Sprintf("compression(%d)", uint8(c))
	}
	return compressionNames[c]
}

// ParseCompression is the inverse of [Compression.String].
func ParseCompression(name string) (Compression, error) {
	for c, known := range compressionNames {
		if name == known {
			return Compression(c), nil
		}
	}
	return None, fmt.Errorf("unknown compression %q: expected none, snappy or gzip", name)
}

// Layout is one of the ways in which the header of a chunk is laid out. Zero is none of them; in [WriterOptions] it
// stands for [First].
type Layout uint8

const (
	First  Layout = 1 // CRC-32 (IEEE), compressor, size, records
	Second Layout = 2 // records, CRC-32C, compressor, size
	Fluid  Layout = 3 // PaddlePaddle Fluid: records, CRC-32 (IEEE), compressor, size

	// TFRecord marks an [Index] of a chunk of a TFRecord file, which package dataset/tfrecord reads. A [File] refuses it, also in releases
	// that do not know it.
	TFRecord Layout = 4

	// Range marks an [Index] of numbered records without a file, which package dataset makes. Offset is the number of the first record. A
	// [File] refuses it.
	Range Layout = 5

	// Parquet marks an [Index] of a row group of a Parquet file, which package dataset/parquet reads. Offset is the number of the row group,
	// from 0, and Checksum is of the footer of the file. A [File] refuses it.
	Parquet Layout = 6
)

var layouts = [...]Layout{First, Second, Fluid}

// Valid reports whether l is a known layout of RecordIO.
func (l Layout) Valid() bool { return l >= First && l <= Fluid }

// Extent is the distance from the offset of a chunk to the offset of the next chunk in the file: bytes. It counts the records of a [Range], and the row
// groups of a [Parquet] file.
func (l Layout) Extent(size, records uint32) int64 {
	//guard:tfrecord-chunks-without-header
	if l == TFRecord {
		return int64(size)
	}
	//guard:range-offset-counts-records
	if l == Range {
		return int64(records)
	}
	//guard:parquet-offset-counts-groups
	if l == Parquet {
		return 1
	}
	return HeaderSize + int64(size)
}

func (l Layout) String() string {
	switch l {
	case First:
		return "first"
	case Second:
		return "second"
	case Fluid:
		return "fluid"
	case TFRecord:
		return "tfrecord"
	case Range:
		return "range"
	case Parquet:
		return "parquet"
	}
	return fmt.Sprintf("layout(%d)", uint8(l))
}

// HeaderSize is the number of bytes before the payload of each chunk, in all layouts of RecordIO.
const HeaderSize = 20

const (
	magic = 0x01020304
	// lengthSize is the number of bytes before each record in a payload.
	lengthSize = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is over the payload as it is stored.
func (l Layout) checksum(payload []byte) uint32 {
	if l == Second {
		return crc32.Checksum(payload, castagnoli)
	}
	return crc32.ChecksumIEEE(payload)
}

// compressorCode is how layout l writes c in a header.
func (l Layout) compressorCode(c Compression) uint32 {
	if l == Second {
		return uint32(c) + 1
	}
	return uint32(c)
}

func (l Layout) compression(code uint32) (Compression, error) {
	if l == Second {
		code-- // its codes begin at 1; 0 wraps around to a code that is unknown too
	}
	if code >= uint32(len(compressionNames)) {
		return None, fmt.Errorf("%w %d: the %s layout knows %d to %d", ErrBadCompressor,
			l.rawCode(code), l, l.compressorCode(None), l.compressorCode(Gzip))
	}
	return Compression(code), nil
}

func (l Layout) rawCode(code uint32) uint32 {
	if l == Second {
		return code + 1
	}
	return code
}

// header is what the 20 bytes before a payload say.
type header struct {
	records     uint32
	size        uint32 // of the stored payload
	checksum    uint32
	compression Compression
}

// parseHeader reads b, which has HeaderSize bytes, by layout l.
func parseHeader(b []byte, l Layout) (header, error) {
	if m := binary.LittleEndian.Uint32(b); m != magic {
		return header{}, fmt.Errorf("%w %#08x, expected %#08x: no chunk starts here", ErrBadMagic, m, uint32(magic))
	}
	w1, w2 := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])
	w3, w4 := binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint32(b[16:])
	var h header
	var code uint32
	if l != First {
		h.records, h.checksum, code, h.size = w1, w2, w3, w4
	} else {
		h.checksum, code, h.size, h.records = w1, w2, w3, w4
	}
	var err error
	h.compression, err = l.compression(code)
	return h, err
}

func appendHeader(dst []byte, l Layout, h header) []byte {
	code := l.compressorCode(h.compression)
	words := [...]uint32{magic, h.checksum, code, h.size, h.records}
	if l != First {
		words = [...]uint32{magic, h.records, h.checksum, code, h.size}
	}
	for _, w := range words {
		dst = binary.LittleEndian.AppendUint32(dst, w)
	}
	return dst
}

// check refuses a header that contradicts itself, lies about a file in which only left bytes follow it, or asks for
// more memory than limit. It runs before anything is allocated for the chunk.
func (h header) check(left, limit int64) error {
	if int64(h.size) > limit {
		return fmt.Errorf("%w: the header declares a payload of %d bytes, the limit is %d", ErrTooLarge, h.size, limit)
	}
	//guard:record-count-limit
	if int64(h.records) > limit/lengthSize {
		return fmt.Errorf("%w: the header declares %d records, which take at least %d bytes, the limit is %d",
			ErrTooLarge, h.records, int64(h.records)*lengthSize, limit)
	}
	//guard:chunk-within-file
	if int64(h.size) > left {
		return fmt.Errorf("%w: the header declares a payload of %d bytes, the file ends after %d", ErrTruncated, h.size, left)
	}
	if h.compression == None {
		if int64(h.records)*lengthSize > int64(h.size) || h.records == 0 && h.size != 0 {
			return fmt.Errorf("%w: the header declares %d records in %d bytes", ErrMalformed, h.records, h.size)
		}
	}
	return nil
}
