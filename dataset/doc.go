// Package dataset implements datasets: it expands the paths and globs of a user to the list of files of a training job, and
// reads the chunks of these files.
//
// A [Source] expands names, checks each file and computes the digest that identifies the dataset. An [Indexer] reads the
// chunks of all listed files. A [Reader] reads the records of a file or of a chunk. [Difference] describes how two lists differ. [Check] reports whether a file is
// unchanged since it was listed.
//
// A file can be an object in a store, named by a URL (s3://bucket/key). [Stores] opens it. Each read names the version that was listed.
//
// # Formats
//
// A file is RecordIO, TFRecord or Parquet. Its content decides, see [Open]. A dataset may have files of several formats. A [Range] is a dataset
// without files, whose record numbers the reader of a trainer resolves.
//
// # Guarantees
//
//   - A Listing is sorted by path, has each path once, and has only regular files and objects that are not empty and are inside the
//     allowed roots. The same files, named in another order or by another glob, give an equal Listing.
//   - No file is omitted silently: a directory that cannot be read and a glob without a match are errors.
//   - Errors of several files are a [FilesError], which has the first errors and the number of all.
//   - No call blocks on a FIFO or opens a device.
//
// # Limits
//
// The roots are checked against resolved symbolic links when a list is made. They prevent a report from naming files that
// the operator did not offer. They give no protection from a process that can write to the directories.
package dataset
