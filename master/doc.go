// Package master implements the master process of a job. It sits between the network APIs (master/netrpc,
// master/grpcapi) and the core packages. A master leads the job while it holds the lock, and returns no result before
// it is committed.
//
//	           campaign              recovered
//	standby ────────────▶ recovering ──────────▶ leading ──▶ job over: linger, exit
//	   ▲                      │                     │
//	   └──────────────────────┴─────────────────────┘
//	     lock lost, fenced, or an unknown outcome that is not settled
//
// # Committer
//
// A term has one committer. Callers queue events. The committer applies all queued events to the task queue and writes
// the new state in one transaction. The transaction compares the lock and the last revision of the state. The committer
// returns the answers only after the write. While a transaction is in progress, the next batch gathers. After a
// transaction, the committer waits briefly for the callers of that batch, because large batches give the highest rate.
//
// # Guarantees
//
// No caller receives a result that is not stored, and only the leader returns results. An answer is returned after the
// fenced write that contains it. An answer that changes nothing is returned while the lease of the lock is valid. The
// next master continues from the last commit and gives the same answers to repeated requests. docs/protocols.md lists
// the rules, each with its test.
//
// # Failure behavior
//
// If a transaction definitely failed, the queue is restored to the last committed state and the callers of the batch
// get ErrNotStored. They may repeat the request. If the outcome is unknown, the committer reads the state back. If the
// new state is stored, the commit succeeded. If the state is unchanged, the same bytes are sent again. If another state is
// stored, the term ends. If an event panics, only that event is dropped. The other events of its batch are applied
// again to the last committed state. If another part of a term panics, the term ends with the stack in the log. Run
// campaigns again after a pause, which doubles up to 30 s if each term panics.
//
// If the lock is lost, the term ends immediately: a write in progress is abandoned, callers get ErrNotLeader, and
// TermDone lets the interfaces close their connections. Run then campaigns again. Run returns only for errors that every
// term would meet: a damaged, partial or newer state, a state of another cluster or job, and a store that went back in
// time. Such a state is never overwritten.
package master
