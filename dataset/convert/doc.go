// Package convert implements the conversion of small datasets into RecordIO or TFRecord shards with a held-out split. The input
// is a table of numbers or of categories, in CSV or JSON lines, or a pair of idx files as of MNIST. Package sample describes the records.
// [Describe] returns the description of a converted dataset.
//
// The order of the samples is a permutation that depends only on their number and a seed. The first part is held out in
// shards of its own, prefix-test-00000-of-00002; the other shards are named prefix-00000-of-00004. The sizes of shards
// differ by at most one record. The same input and options give the same bytes in every shard.
//
// # Failure behavior
//
// A conversion writes all shards or none. It writes and syncs each shard under a hidden temporary name, then renames all of
// them. After an error or a canceled context no file is left, and shards of an earlier conversion are unchanged. Shards of
// an earlier conversion with another number of shards are refused, because a glob would mix them.
//
// The file prefix.dataset.json describes the dataset for users and programs. Shards are valid without this file.
//
// # Memory
//
// All samples are in memory: one byte for each pixel, eight bytes for each category or other number.
package convert
