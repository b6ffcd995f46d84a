// Package parquet implements the index of Apache Parquet files: where their row groups are, and the bytes of one row group for a
// Parquet library. docs/formats/parquet.md describes what is read.
//
// A row group is the smallest part of a task. The package reads the footer of a file only; rows are decoded by a library of the
// trainer, such as github.com/parquet-go/parquet-go.
//
// # Guarantees
//
//   - Memory for an index is bounded by the size of the footer (at most [MaxFooterBytes]), whatever the footer contains.
//   - Every row group of an index is inside the file.
//   - A file with another footer than in the index is an error that wraps [recordio.ErrChanged].
//   - Every error of a file is a *[recordio.Error] with the file name.
package parquet
