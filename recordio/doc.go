// Package recordio reads and writes RecordIO, the file format of the training data: a file is a sequence of chunks, a
// chunk is a 20-byte header and a payload, and a payload is a run of length-prefixed records, compressed as a whole.
// FORMAT.md beside this file draws the bytes.
//
// A chunk is the unit of everything: of compression, of checking, of the index and so of the tasks of a training job.
// An index is built from headers alone; with one entry of it a reader opens a chunk anywhere in a file of any size.
//
// # Three layouts
//
// Three layouts of the header are in use, under the same magic number. This package writes the first one (unless told
// otherwise) and reads all: it reads the first chunk of a file whole and takes the layout whose checksum holds.
//
// # What is guaranteed
//
//   - A reader never delivers a record of a chunk whose checksum it has not verified, and never delivers fewer records
//     than the headers promise without an error. What no reader can see is a file that was cut exactly between two
//     chunks, since the format has no trailer: the size in the dataset's digest notices that.
//   - Every error about a file is an *[Error] with the file's name and the byte offset of the chunk at fault, and wraps
//     one of the sentinels ([ErrTruncated], [ErrBadMagic], ...).
//   - Memory is bounded before it is taken: no length that was read from a file is believed before it was compared with
//     the file's size and with [File.MaxChunkBytes], which also bounds what a payload may decompress to.
//
// Reads go through [io.ReaderAt], by one call for each chunk; mapping files into memory would be faster, but a file
// that is cut while it is read would then kill the process instead of giving an error.
package recordio
