// Package pserver is one parameter server: a shard of a model's parameters,
// the optimizer that changes them, and the checkpoints that keep them.
//
// One TCP port carries two protocols, told apart by the first bytes: gRPC for
// control (Describe, InitParameters, FinishInit, CommitStep, the cuts, health,
// reflection) and the frames of package wire for data. Trainers on the same
// machine find a unix domain socket for the same, by the reply to their hello,
// and use it if it leads to the server that offered it. Which shard a server
// is comes from a [Registry]; which blocks a shard holds comes from the table
// of package placement.
//
//	          claim index           first parameters, or a checkpoint
//	start ----------------> empty ------------------------------------> ready ----> lease lost: exit with an error
//	                          |  ^                                        |    ----> told to stop: checkpoint, release
//	             one trainer  v  | it was silent too long                 v
//	                      initialising                              pull, push, stage
//
// # Updates
//
// In asynchronous mode a push is applied on arrival, under the lock of its
// block or slot. The job can lower the learning rate of stale gradients (package
// staleness). In synchronous mode gradients are staged, one per trainer, and
// CommitStep applies them: for each block the sums of the contributors are
// added in rank order, multiplied by float32(1/records), and given to the
// optimizer. The order is that of the request and never of arrival, every
// element is computed by itself, and so the bits are a function of the
// commits: replaying them on the same build gives the same parameters.
//
// The optimizer (package optimizer) is the job's. Its state lies beside the
// parameters of a block and changes with them. Its schedule goes by the step of a
// push, and by the version of a commit.
//
// # Tables
//
// Tables of embeddings (package table) are sparse parameters: rows by id. What is
// said of blocks holds for their slots, which are looked up, pushed and staged by
// operations of their own.
//
// # Guarantees
//
// A push is applied once: for every trainer and block the shard keeps the step
// last applied, also in checkpoints, at the same cut as the parameters and the
// optimizer's state. A frame is read whole and checked, its gradient for NaN and
// infinities too, before any of it is applied. A pull copies its block under the
// block's lock, so that it never sees half an update. A newer incarnation of a
// trainer fences the older one: when its hello was answered, no push of the older
// one will be applied any more.
//
// Checkpoints are taken at the cuts of a master, which makes sets of them, and
// by the shard itself with its first parameters and when it is told to stop. A
// restarted shard continues from a set, or from what it saved itself since
// (docs/formats/parameter-server-checkpoint.md says when), under a new shard
// epoch. Pushes that name another epoch are answered "resync", so that a trainer
// knows that it has to pull anew. In asynchronous mode the updates since the
// checkpoint are lost. In synchronous mode the shard adopts the
// committed version that it is told, by CommitStep, or by Describe, without the
// updates that it lost: its share of the model is then some versions older
// than its number, and the result is not the one that a replay would give.
//
// # Failure
//
// Run returns an error when the lease is lost, when the checkpoint folder has
// been taken over by a later start, and when no checkpoint in the folder can be
// used although there are some. A checkpoint that cannot be written is an
// error in the log and in Describe; training goes on and the older one stays.
// Connections, buffers and stages are bounded: beyond the bounds clients wait
// or are refused, and a peer that stalls in the middle of a frame is cut off.
package pserver
