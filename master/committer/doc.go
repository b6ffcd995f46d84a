// Package committer implements the only writer of a term: it applies events to the task queue, stores the state in fenced transactions and
// answers the callers.
//
// [Recover] reads the stored state. Callers queue requests with [Committer.Do]. The committer applies all queued events and writes the new
// state in one transaction, which compares the lock and the last revision of the state. After the write, it logs the notices, puts the
// effects into the mailboxes, and returns the answers, in this order.
//
// If a transaction definitely failed, the queue is restored to the committed state, and the callers of the batch get [ErrNotStored]. If the
// outcome is unknown, the committer reads the state back: the same bytes are sent again until they, or another state, are stored. An event
// that panics is dropped alone. An error of Round or Run, or another panic in Run, ends the term.
package committer
