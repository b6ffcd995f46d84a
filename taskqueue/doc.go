// Package taskqueue is the pure state machine of a job: which tasks are to do, pending,
// done and set aside, and who holds them. It has no clock, no goroutine and no I/O: every
// event carries the time, and a master commits what changed before it answers.
//
//	                    ask                      finish
//	   todo ─────────────────────────▶ pending ────────────▶ done
//	(beyond the cursor)                │  ▲ ask              (before the cursor,
//	                  timeout, failure,│  │                   in no list)
//	                  loss, leave      ▼  │                     ▲
//	                                  retry                     │ late finish
//	                     too many      │                        │
//	                     failures      └──────▶ set aside ──────┘
//	                                              │  operator's retry: back to retry or todo
//
// # Guarantee
//
// In each pass every task is delivered at least once and counted exactly once, or is set
// aside and reported. It holds for every sequence of events, repeated, late and made up
// ones included, if the state that Snapshot returns is stored before an answer leaves.
//
// # State
//
// The order of a pass is a permutation of the task indices that is computed, not stored
// (see order). So the state is small: the cursor, the live tasks (dispatched, or waiting to
// be dispatched again), the set-aside ones and a few sums. Whatever lies before the cursor
// and is in no list is done.
//
// A Token names one dispatch; a finish is judged by its token alone. One that names a live
// task with an attempt that was handed out counts, whoever sends it and however late; one
// for a task that is done is "already counted"; any other is "stale" and changes nothing.
//
// What happened is in the ledger that Ready returns beside the state. A Verifier proves
// the guarantee from it, with books of its own.
//
// # Explicit commits
//
// A job may be one where trainers save the model at steps of their choice, and a task counts
// once a saved step has all of it: see StepFlushed, StepCommit and Rollback. Then each record
// of a pass is in exactly one committed step, or its task is set aside.
//
// # Failure behaviour
//
// Events never fail half way. Input from clients (tokens, indices, request numbers) is
// judged, never trusted. A pass whose sums do not add up ends the job as failed rather than
// going on from a damaged state.
package taskqueue
