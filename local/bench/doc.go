// Package bench measures what durable answers cost, against what the machine and the store
// can do at all. All that a figure compares is measured in one run, in turns, on the same
// connection; medians are reported.
//
//	this process            its children
//	master, raw loop  ────▶ etcd, default flags, fsync on a real disk (one more behind a
//	      ▲                 delaying proxy, where asked for)
//	      └──────────────── load: trainers, a net/rpc connection each
//
// In-process trainers run in this process. The children end when this process does, however
// it ends: their standard input closes.
//
// # The raw rate
//
// One transaction after the other, on the master's own connection to etcd, with the two
// compares of a commit (lock key created at, overwritten key modified at) and a value of
// the size of the stored state. A rate over it says how many durable answers a transaction
// carries.
//
// # Parameter servers
//
// [PS] has a process for each server and each trainer and asks them in turns. Nothing else
// is in this process but the leader of the checkpoints, and the optimizers, which are
// measured after that.
//
// Nothing here is a test: absolute figures shift from machine to machine.
package bench
