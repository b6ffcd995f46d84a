// Package recordio implements RecordIO, the file format of training data. A file is a sequence of chunks. A chunk has a
// 20-byte header and a payload. A payload is a run of length-prefixed records, compressed as a whole. FORMAT.md specifies
// the bytes.
//
// A chunk is the unit of compression, of checksums and of the index, and so of the tasks of a training job. An index is
// built from the headers. With one index entry a reader opens a chunk anywhere in a file of any size.
//
// # Layouts
//
// Three layouts of the header exist with the same magic number. A Writer writes the first layout by default. A reader
// supports all: it reads the whole first chunk of a file and selects the layout with a valid checksum.
//
// # Guarantees
//
//   - A reader verifies the checksum of a chunk before it returns a record of the chunk. It returns an error if a chunk
//     has fewer records than its header declares. A file that was cut exactly between two chunks is valid, because the
//     format has no trailer; the file size in the digest of a dataset detects such a cut.
//   - Every error of a file is an *[Error] with the file name and the byte offset of the damaged chunk. It wraps a
//     sentinel error ([ErrTruncated], [ErrBadMagic] and others).
//   - Memory is bounded. Each length in a file is compared with the file size and with [File.MaxChunkBytes] before memory
//     is allocated. The limit also bounds the decompressed size of a payload.
//
// A reader makes one call of [io.ReaderAt] per chunk. It does not map files into memory: if a mapped file is truncated
// during a read, the process is killed instead of receiving an error.
package recordio
