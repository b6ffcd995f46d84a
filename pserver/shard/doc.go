// Package shard is the core of a parameter server: the parameters of one shard and the optimizer state of its blocks and slots.
//
// It applies each step of a trainer once, stages gradients until a commit names them, copies the state at a cut while updates continue,
// and passes blocks and slots to other shards. It knows no frame, socket, file, clock or log: callers pass the time, and [New] takes
// an observer of notices. A request that the core does not execute gets a [Refusal] or one of the errors of this package; the data port and
// the control service convert them to their codes. The core never waits. A refusal has a channel if another attempt can succeed later.
//
// A [View] is a model with the blocks and slots that the shard holds. A migration, a rollback and a restart install another view.
// migration.go has all of a migration: a partition is frozen in Freeze, its steps travel in [Origin], and it is dropped in Settle.
//
// # Lock order
//
// A goroutine takes locks in this order only, and may leave some out:
//
//	Checkpoints.mu -> commitMu -> Shard.mu -> stages.mu -> stage.mu -> rowsMu -> partition -> memory
//
// One checkpoint, rollback or change of the placement holds Checkpoints.mu, of package persist, at a time. The commit of a version, the
// start of a cut and a rollback hold commitMu. Shard.mu guards the trainers, the retirement, the claim and the migration; the switch to
// another placement holds it. A commit also holds rowsMu while it changes rows; a lookup holds rowsMu for one batch. A commit holds the
// locks of the stages of all contributors; no other function holds two of them. The locks of the version, of the memory of a table, of
// the status of checkpoints, of the open connections and of the buffers are the last ones: no other lock is taken under them.
//
// The lock of a [partition.Partition] guards a block, or a slot of a table. A push holds the lock of one partition at a time, and under
// it only the lock of the memory. No lock is held while a caller waits for a version or for the end of a migration. A rollback reads
// checkpoint files under Checkpoints.mu, commitMu and Shard.mu: no trainer is connected then.
package shard
