// Package reference is the training loop of the reference trainer: it takes tasks, reads their records into mini-batches,
// computes gradients with one of package model's models, and gives them to the parameter servers.
//
// # Two ways to train
//
// Asynchronous: each mini-batch is one fused push-pull. The mean gradient is applied on arrival, and the parameters that
// come back are what the next mini-batch is computed at. With PushEvery the mean is over the records of several
// mini-batches, with PullEvery fewer pushes bring parameters back.
//
// Synchronous, for each mini-batch:
//
//	      +------------------------------------------------------------+
//	      v                                                            | too late: the same batch
//	pull version v --> sums of gradients at v --> stage on all shards --> report to the master --> in version v+1
//
// With backup workers a step leaves the slowest ones out; for them it is as if they had been overtaken.
//
// The sums are staged on every shard before the master hears of them. What comes too late for its version is computed
// again from the same records at the version that overtook it.
//
// # Guarantees
//
// A task is passed on as finished only when every one of its mini-batches is in: acknowledged by every shard that has a
// part of it (asynchronous), or in a committed version (synchronous). Its line is in the journal before that. The last
// mini-batch of a task may be smaller; no mini-batch, and no push of several, spans two tasks.
//
// # Failure
//
// A record that cannot be read or does not fit the model fails its task, with the reason, and the loop goes on with the
// next one; mini-batches that were in before that stay in, those not pushed yet are dropped. Everything else ends Run with an error and leaves the task
// unfinished, so that it is sent to another trainer: parameter servers that refuse, a model that diverged, a journal that
// cannot be written, a context that ended.
package reference
