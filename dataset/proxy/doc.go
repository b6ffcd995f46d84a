// Package proxy implements the data proxy: a gRPC service that reads the records of RecordIO and TFRecord files for trainers
// without access to the files, and its client. docs/data-proxy.md is for users.
//
// A [Spec] is a validated sequence of runs of records, and a [Reader] reads it from any record on. [Service] keeps specifications as
// streams and sends their records in batches. [Client] reads a stream to its end, and continues at the next record when the proxy was
// restarted.
//
// # Guarantees
//
//   - A call sends each record from its start_record on once, in order, up to the end of the stream or an error.
//   - A batch is sent only if all its files had their stamps after its last record was read. Checksums are verified before.
//   - Every file is inside the roots, with symbolic links resolved, when a stream is created and again when the file is opened.
//   - A reader takes at most 16 MiB: a chunk as stored and decompressed (4 MiB each), batches that wait for the connection (4 MiB), and a
//     message inside the connection (4 MiB). A slow client stops its reader.
//   - Readers, streams and the memory of streams are bounded.
//
// # Failure behavior
//
// Streams are in memory only. After a restart, or when no reader has used a stream for 10 minutes, its id is gone, and the client
// creates the stream again. A client that accepts no batch for 10 minutes loses its call, not its stream. A file that hangs blocks
// its reader only; the reader keeps its place until the file system answers.
package proxy
