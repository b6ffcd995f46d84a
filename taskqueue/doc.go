// Package taskqueue implements the state machine of a job: which tasks are to do, pending, done and set aside, and which
// trainers hold them. It has no clock, no goroutine and no I/O. Every event carries the time, and a master commits the changes
// before it answers.
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
// In each pass every task is delivered at least once, and is counted exactly once or set aside and reported. The guarantee
// holds for every sequence of events, including repeated, late and forged events, if the state that Snapshot returns is stored
// before an answer is sent.
//
// # State
//
// The order of a pass is a permutation of the task indices. It is computed, not stored (see order). So the state is small: the
// cursor, the live tasks (dispatched, or waiting to be dispatched again), the set-aside tasks and a few sums. Each task before
// the cursor that is in no list is done.
//
// A Token identifies one dispatch. A finish is judged by its token alone, whichever trainer sends it and at any time. A token
// of a live task with an attempt that was dispatched counts. A token of a task that is done is "already counted", which
// can only correct the average time of a task. Any other token is "stale" and changes nothing.
//
// Ready returns the state and the ledger of the events. A Verifier proves the guarantee from the ledger, with its own
// accounting.
//
// # Explicit commits
//
// In a job of explicit commits, trainers save the model at steps of their choice. A task counts once a saved step has all of
// it: see StepFlushed, StepCommit and Rollback. Then each record of a pass is in exactly one committed step, or its task is
// set aside.
//
// # Failure behavior
//
// An event applies completely or not at all. Input from clients (tokens, indices, request numbers) is checked, never trusted.
// If the sums of a pass do not add up, the job fails instead of continuing from a damaged state.
package taskqueue
