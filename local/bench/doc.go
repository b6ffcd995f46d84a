// Package bench measures the cost of durable answers, and compares it with the limits of the machine and the store. Both sides
// of a comparison are measured in one run, alternately, on the same connection. Medians are reported.
//
//	this process            its children
//	master, raw loop  ────▶ etcd, default flags, fsync on a real disk (one more behind a
//	      ▲                 delaying proxy, where asked for)
//	      └──────────────── load: trainers, a net/rpc connection each
//
// In-process trainers run in this process. The children end with this process, because their standard input closes.
//
// # The raw rate
//
// One transaction after the other, on the master's own connection to etcd, with the two
// compares of a commit (lock key created at, overwritten key modified at) and a value of
// the size of the stored state. The ratio of a rate to it is the number of durable answers in a
// transaction.
//
// # Parameter servers
//
// [PS] has a process for each server and each trainer, and measures them alternately. This process has only the leader of the
// checkpoints. It measures the optimizers afterwards.
//
// Nothing here is a test: absolute figures shift from machine to machine.
package bench
