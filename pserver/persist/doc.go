// Package persist stores the state of a shard in checkpoints and restores it.
//
// A checkpoint is written at a cut of the core (package shard) while updates go on: at the cuts of the master, for a set of all
// shards. A pace slows the writer down while trainers are active.
// Package checkpoint has the files.
package persist
