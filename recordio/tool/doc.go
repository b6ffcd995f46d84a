// Package tool implements the commands on RecordIO files: writing, listing, verifying, printing and converting, and their benchmark.
// Listing, verifying and printing also take TFRecord files; listing takes Parquet files too.
//
// A written file appears under its name only when it is complete and synced; existing files are replaced only if the caller asks for it. Reading ends with
// its context, also if it waits for a pipe. A damaged file does not stop the check of the other files: the error has the errors of all.
package tool
