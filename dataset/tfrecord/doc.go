// Package tfrecord implements TFRecord, the file format of TensorFlow's training data: a reader, a writer and an index of
// chunks. docs/formats/tfrecord.md specifies the bytes.
//
// A file is a sequence of records without a header. A record is its length, a checksum of the length, the data and a checksum
// of the data:
//
//	0          8               12          12+length       16+length
//	+----------+---------------+-----------+---------------+
//	| length   | CRC of length | data      | CRC of data   |
//	| uint64   | uint32        | length B  | uint32        |
//	+----------+---------------+-----------+---------------+
//
// Numbers are little-endian. A CRC is a masked CRC-32C. A file can be compressed as a whole, by gzip or zlib.
//
// # Chunks
//
// The format has no chunks. An index makes them: a chunk is a run of whole records, and [IndexOptions] set its size. A
// reader opens a chunk of a file of any size without the records before it. A compressed file is one chunk, because a
// reader cannot start in the middle of compressed data.
//
// # Guarantees
//
//   - A reader verifies both checksums of a record before it yields the data. The index verifies the checksums of
//     lengths only.
//   - A file that ends inside a record is an error. A file that was cut exactly between two records is valid, because the
//     format has no trailer; the file size in the digest of a dataset detects such a cut. A file of 0 bytes has no records.
//   - A chunk with other records than in the index is an error that wraps [recordio.ErrChanged]. The index has a checksum of
//     the checksums of all records of a chunk.
//   - Every error of a file is an *[Error] with the file name, the record number and the byte offset. It wraps a
//     sentinel error of package recordio ([recordio.ErrTruncated], [recordio.ErrBadChecksum] and others) or the error of the
//     underlying reader.
//   - Memory is bounded: a buffer of 256 KiB, and the largest record. Each length in a file is compared with [File.MaxRecordBytes] and
//     with the file size before memory is allocated. If the file is compressed, memory grows with the data that arrives.
package tfrecord
