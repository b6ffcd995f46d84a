// Package convert turns the usual forms of small datasets (CSV tables of numbers or of categories, MNIST's idx files) into
// RecordIO shards of package sample's records, with a held-out split. [Describe] says what a converted dataset is.
//
// The order of the samples is a permutation that depends on nothing but their number and a seed. Its first part is held out
// and goes to shards of its own, named prefix-test-00000-of-00002, the rest to prefix-00000-of-00004; shards differ in
// size by one record at most. The same input and options give the same bytes in every shard.
//
// A shard appears whole or not at all: each is written under a hidden temporary name and synced, and when all of them are,
// they are renamed. After an error or a cancelled context nothing is left behind, and shards of an earlier conversion are
// untouched. Shards of an earlier conversion into another number of shards are refused, because a glob would mix them.
//
// Beside the shards stands prefix.dataset.json, the description of the dataset for people and programs. Shards are valid without it.
//
// All samples are held in memory: one byte for each pixel, eight for each category or other number.
package convert
