// Package shard has the types at the boundary of the core of a parameter server: the update that a caller asks for, the values that
// it passes, the sink that takes parameters, and the refusal.
//
// The core keeps the parameters of one shard, applies each step of a trainer once, and stages gradients until a commit names them.
// It returns a [Refusal] instead of an error of a protocol: it knows no frame, no socket and no file. The data port and the control
// service convert refusals to their codes. The core itself is still in package pserver.
//
// # Lock order
//
// A goroutine takes locks in this order only, and may leave some out:
//
//	checkpoints.mu -> commitMu -> moving.mu -> shard.mu -> stages.mu -> stage.mu -> block.mu, table -> cuts.freeMu
//
// One checkpoint, rollback or change of the placement holds checkpoints.mu at a time. The commit of a version, the start of a cut
// and the switch to another placement hold commitMu. A commit also holds rowsMu while it changes rows; a lookup holds rowsMu for
// one batch. The locks of the version, of the buffers, of the status of checkpoints and of the open connections are never held
// with another one.
//
// A push holds the lock of its block, or of one slot of its table at a time, and no other lock. No lock is held while a caller
// waits for a version or for the end of a migration.
package shard
