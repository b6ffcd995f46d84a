package taskqueue

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Ready is what a batch of events leaves to do. The caller stores Writes and Entries with Snapshot in one transaction, then
// publishes Effects and Notices, then sends the answers. If the store refuses the transaction, the caller discards all of it.
type Ready struct {
	MustCommit bool // the state changed, or an answer of the batch is final; otherwise the rest is empty
	Writes     []Write
	Entries    []byte // of the ledger, without their key
	Effects    []Effect
	Notices    []Notice
}

// Ready ends a batch: it lets the strategy decide, completes at most one synchronous step, returns what changed since the last call, and gives the state its
// next commit number. If nothing must be committed, it changes nothing.
func (q *Queue) Ready() Ready {
	q.steer(nil)
	if q.completeStep() { //guard:step-decided-with-its-transaction
		q.steer(nil)
	}
	//guard:job-end-stored-first
	if !q.dirty && !q.final {
		return Ready{}
	}
	q.commit++
	r := Ready{MustCommit: true, Writes: q.keys, Entries: q.ledger.take(), Notices: q.notices}
	for id, t := range q.roster {
		if t == nil {
			r.Writes = append(r.Writes, Write{Key: rosterKey(id), Delete: true})
			continue
		}
		t.stored = true
		r.Writes = append(r.Writes, Write{Key: rosterKey(id), Value: t.encode()})
	}
	for key, value := range q.asides {
		r.Writes = append(r.Writes, Write{Key: key, Value: value, Delete: value == nil})
	}
	if x := q.sync; x != nil && x.changed {
		//guard:step-stored
		r.Writes = append(r.Writes, Write{Key: StepKey, Value: x.last.Encode()})
		q.raise(StepCommitted{x.last})
		q.unblock(WaitStep)
		x.changed = false
	}
	r.Writes = append(r.Writes, q.roundWrites()...)
	r.Writes = append(r.Writes, q.strategyWrites()...)
	r.Writes = append(r.Writes, q.populationWrites()...)
	slices.SortFunc(r.Writes, func(a, b Write) int { return strings.Compare(a.Key, b.Key) })
	if q.opt.Cuts {
		due := q.StepsDue().Commit
		if due && !q.commitDue {
			q.raise(CheckpointDue{})
		}
		q.commitDue = due
	}
	//guard:session-end-raised
	if q.sessionEnded {
		q.raise(q.sessionsChanged())
	}
	r.Effects = slices.SortedFunc(maps.Values(q.effects), func(a, b Effect) int {
		return cmp.Or(cmp.Compare(a.Key().Kind, b.Key().Kind), cmp.Compare(a.Key().Set, b.Key().Set))
	})
	clear(q.roster)
	clear(q.asides)
	clear(q.effects)
	q.keys, q.notices, q.dirty, q.final, q.sessionEnded, q.joins = nil, nil, false, false, false, 0
	return r
}

// PendingWrites returns how many keys Ready would return besides the state and the ledger entries.
func (q *Queue) PendingWrites() int { return len(q.roster) + len(q.asides) + len(q.keys) }

// isFinal reports whether an answer may leave only after a fenced write, even if the state is unchanged.
func (a *Answer) isFinal() bool {
	return a.Kind == AnswerEnded || a.Kind == AnswerFailed || a.Kind == AnswerStep || a.Granted
}
