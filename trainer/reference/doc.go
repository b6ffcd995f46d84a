// Package reference implements the training loop of the reference trainer: it takes tasks, reads their records into mini-batches,
// computes gradients with a model of package model, and sends them to the parameter servers.
//
// # Asynchronous training
//
// Each mini-batch is one combined push-pull. The servers apply the mean gradient on arrival, and the returned parameters are the
// input of the next mini-batch. With PushEvery the mean is over the records of several mini-batches. With PullEvery fewer pushes
// return parameters.
//
// # Synchronous training
//
// For each mini-batch:
//
//	      +------------------------------------------------------------+
//	      v                                                            | too late: the same batch
//	pull version v --> sums of gradients at v --> stage on all shards --> report to the master --> in version v+1
//
// With backup workers a step omits the slowest trainers, which continue as if they were too late. Every shard has the sums before
// the report to the master. A gradient that is too late for its version is computed again from the same records at the committed
// version.
//
// # Guarantees
//
// A task is reported as finished only after each of its mini-batches is applied: acknowledged by every shard with a part of it
// (asynchronous), or in a committed version (synchronous). Its line is in the journal before the report. The last mini-batch of a
// task may be smaller. No mini-batch, and no push of several, spans two tasks.
//
// # Failure
//
// A record that is unreadable or does not fit the model fails its task with the reason, and the loop continues with the next task.
// Earlier mini-batches stay applied; mini-batches without a push are dropped. Any other error ends Run and leaves the task
// unfinished, so that the master dispatches it to another trainer. Examples are refusing parameter servers, a diverged model, a
// journal that cannot be written, and an ended context.
package reference
