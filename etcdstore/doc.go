// Package etcdstore implements all access to etcd: the leader's lock, its fenced commits, the registry of processes, readers
// and watches, and the embedded server. docs/keys.md lists every key.
//
// # The lock
//
//	          grant, put key                lower keys gone
//	Campaign ───────────────▶ queued ───────────────────────▶ leading
//	   ▲                        │ lease or key lost              │
//	   └────────────────────────┘                                │
//	                     Lost closes, Valid is false  ◀──────────┘
//	                                                key gone, or no keep-alive
//	                                                answer in time, or Resign
//
// A campaigner grants a lease and puts /master/lock/<lease> on it; the key with the lowest create revision leads. A holder
// trusts its lock no longer than (keep-alive SENT + TTL - margin), measured on CLOCK_BOOTTIME, which also runs while the
// machine is suspended. etcd counts the lease's time from when it received that keep-alive, so the holder stops first. That
// trust only decides which requests may be answered without a write. Writes do not depend on a clock. Every commit compares
// the lock key's create revision and the last revision of /task_queues inside the transaction. So a holder that was paused, or
// a transaction that arrives late, changes nothing.
//
// # How a transaction can end
//
// A mutation is sent once. The etcd client's own retries are off (MaxUnaryRetries 1): it would send a transaction again after
// a deadline reported by the server. The failed compare of the second attempt would then hide the success of the first. gRPC
// itself sends again only requests that no server has begun to process.
//
//	answer                                           outcome
//	succeeded                                        done
//	compare failed                                   taskqueue.ErrFenced
//	lease not found (a LeaseBound write)             taskqueue.ErrFenced
//	never handed to a connection (any code)          definite failure
//	InvalidArgument, FailedPrecondition, OutOfRange,
//	  PermissionDenied, Unauthenticated,
//	  Unimplemented, ResourceExhausted               definite failure
//	database space exceeded                          read back, see below
//	Unavailable, DeadlineExceeded, Canceled,
//	  Unknown, Internal, Aborted, DataLoss, the rest taskqueue.ErrUnknownOutcome
//
// "Database space exceeded" is answered both before and after a transaction was applied (the applier that crosses the quota
// first applies, then returns the error). [Lock.Commit] therefore reads the state back: unchanged is taskqueue.ErrStoreFull,
// its own bytes are success.
//
// An expired authentication token is refreshed and the request sent again: etcd checks it before anything else.
//
// # Reads and watches
//
// Reads are linearizable and are repeated while etcd is unavailable, until their context ends. Watches are level-triggered:
// list, then follow. If the history was compacted under a watch, or the watch broke, they list again. A caller always sees a
// state that existed, never a sequence of events.
package etcdstore
