// Package pserver implements a parameter server: one shard of a model's parameters, the optimizer that updates them, and the
// checkpoints that store them. This package has the configuration, the start and the stop. Package shard is the core. Package
// dataport serves the trainers, and package control the gRPC calls. Package persist writes and restores checkpoints, and package
// migrate copies blocks and slots between servers.
//
// One TCP port serves two protocols, distinguished by the first bytes: gRPC for control (Describe, InitParameters, FinishInit,
// CommitStep, cuts, health, reflection) and the frames of package wire for data. The reply to a hello offers trainers on the same
// machine a unix domain socket for the same protocols. A [Registry] assigns the index of the shard. The placement table (package
// placement) assigns its blocks.
//
//	          claim index           first parameters, or a set
//	start ----------------> empty ------------------------------------> ready ----> lease lost: exit with an error
//	                          |  ^                                        |    ----> stop requested: await a set, release
//	             one trainer  v  | claim expired                          v
//	                      initializing                              pull, push, stage
//
// # Updates
//
// In asynchronous mode a push is applied on arrival, under the lock of its block or slot. A job can lower the learning rate of
// stale gradients (package staleness). In synchronous mode trainers stage gradients, and CommitStep applies them: for each block
// the server adds the sums of the contributors in the order of the request, multiplies by float32(1/records), and runs the optimizer. The order
// is fixed by the request, not by arrival, and no element depends on another. A replay of the same commits on the same build
// therefore gives the same bits.
//
// All shards use the optimizer of the job (package optimizer). Its state belongs to a block and changes with the parameters. The
// schedule depends on the step of a push, or on the version of a commit.
//
// # Tables
//
// Tables of embeddings (package table) are sparse parameters: rows by id. Slots of a table follow the same rules as blocks, with
// separate operations for lookup, push and stage.
//
// # Guarantees
//
// A push is applied once: for each trainer and block the shard stores the last applied step, in checkpoints too, at the same cut as
// the parameters and the optimizer state. The server reads and checks a whole frame, including NaN and infinities, before it
// applies any of it. A pull copies a block under the block's lock, so it never returns half an update. A new incarnation of a
// trainer fences the old one: after the reply to its hello, no push of the old incarnation is applied.
//
// The shard takes checkpoints at the cuts of the master, which combines them into sets. In asynchronous mode it asks for a set when it
// has its first parameters, and applies no push until etcd names that set. It asks again when it stops. A restarted shard continues from the set that etcd
// names, under a new shard epoch. The answer to a push of another epoch is "resync", and the trainer pulls again. In asynchronous mode a
// kill loses the updates since the set. In synchronous mode the leader rolls all shards back to the last set.
//
// # Failure
//
// Run returns an error if the lease is lost, or if a later start owns the checkpoint directory. If the set is damaged or missing, the
// server waits without parameters until an operator names another set. If a checkpoint cannot be written, the log and Describe report the error, training continues, and the previous
// checkpoint stays. Connections, buffers and stages are bounded: beyond the bounds clients wait or are refused. The server closes
// a connection that stalls in the middle of a frame.
package pserver
