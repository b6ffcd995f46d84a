// Package dataset turns what a user names, paths and globs, into the list of files of a training job, and the list into
// the chunks of those files.
//
// A [Source] expands names, checks each file and computes the digest by which two lists are the same dataset or not. An
// [Indexer] reads the chunk headers of all listed files. [Difference] says in words how two lists differ, and [Check] tells
// whether a file is still the one that was listed.
//
// # What is guaranteed
//
//   - A Listing is sorted by path, has no path twice, and holds only regular, non-empty files inside of the allowed roots.
//     The same files named in another order or by another glob give an equal Listing.
//   - Nothing is left out silently: a folder that cannot be read while a glob is expanded is an error, and so is a glob
//     that matches nothing.
//   - Errors about several files are collected in a [FilesError], which names the first ones and counts all of them.
//   - Nothing here blocks on a FIFO or opens a device.
//
// The roots are checked against resolved symlinks when a list is made. They keep a report from naming files that the
// operator did not offer; they are no defence against somebody who can write to the folders themselves.
package dataset
