package taskqueue

import "fmt"

// Cuts: with Options.Cuts the leader alone commits the steps of a job of explicit commits. Step c is cut c: a consistent point
// of the data and of all parameter servers.
//
//	CutBegin(c) ──▶ every member: StepFlushed(c), then it is quiesced ──▶ CutReady(c)
//	                                                                          │ each server fixes its version
//	members continue ◀── CutRelease(c) ◀───────────────────────────────────────┘
//	                       ⋮ files
//	                  StepCommit(c), with the set's name in the same transaction
//
// No synchronous step is made between CutBegin and CutRelease: the cut is at the last committed version. A trainer that waits
// for a step flushes as well. Its staged gradient is for the version after the cut.
//
// In the sets flushed and members, ordinal 0 is the leader. flushed[0] records that the leader released the members.
// members[0] records that it did so before all had flushed: such a cut is never committed. A cut that is not committed changes
// nothing: the next cut has a new number and starts over.

// holdsMembers reports whether members that flushed are quiesced. The end of the job releases them too.
func (q *Queue) holdsMembers() bool {
	ended := q.status == Ended || q.status == Failed
	//guard:cut-ends-with-job
	return q.opt.Cuts && q.explicit != nil && q.explicit.round != 0 && !q.explicit.flushed[0] && !ended
}

// toFlush reports whether a cut waits for this member.
func (q *Queue) toFlush(t *trainer) bool {
	return q.holdsMembers() && q.explicit.members[t.ordinal] && !q.explicit.flushed[t.ordinal]
}

// isStopping reports whether a cut waits for this trainer to flush.
func (q *Queue) isStopping(o Ordinal) bool {
	t := q.trainers[o]
	return t != nil && !t.gone && q.toFlush(t)
}

// cutting finds out whether the leader may do something for a cut.
func (q *Queue) cutting() *Answer {
	switch {
	case q.explicit == nil || !q.opt.Cuts:
		return &Answer{Err: fmt.Errorf("%w that the leader takes", ErrNotExplicit)}
	case q.status == Ended:
		return &Answer{Kind: AnswerEnded}
	case q.status == Failed:
		return &Answer{Kind: AnswerFailed}
	}
	return nil
}

// CutBegin begins a cut and replaces an uncommitted cut.
type CutBegin struct{ Step uint64 }

func (ev *CutBegin) apply(q *Queue) Answer {
	if refused := q.cutting(); refused != nil {
		return *refused
	}
	if x := q.explicit; ev.Step <= x.committed || ev.Step <= x.round {
		return Answer{Err: fmt.Errorf("%w: cut %d is committed and cut %d (0: none) was begun, found %d", ErrOtherStep, x.committed, x.round, ev.Step)}
	}
	if q.explicit.lost > 0 || q.misplaced() {
		return Answer{Err: fmt.Errorf("%w: its open task may be in part in the parameters", ErrMemberLost)}
	}
	q.endRound()
	delete(q.explicit.members, 0)
	q.explicit.round = ev.Step
	q.unblock(WaitTask, WaitFlush)
	return q.stepAnswer()
}

// CutReady waits until every member has flushed the cut and is quiesced.
type CutReady struct{ Step uint64 }

func (ev *CutReady) apply(q *Queue) Answer {
	if refused := q.cutting(); refused != nil {
		return *refused
	}
	if ev.Step != q.explicit.round {
		return Answer{Err: fmt.Errorf("%w: cut %d is under way, found %d", ErrOtherStep, q.explicit.round, ev.Step)}
	}
	wait, err := q.unflushed(ev.Step)
	switch {
	case err != nil:
		return Answer{Err: err}
	case wait:
		return Answer{Kind: AnswerWait, WaitFor: WaitFlush}
	}
	return q.stepAnswer()
}

// CutRelease releases the quiesced members. Without a cut it does nothing. A cut that some member has not flushed is
// abandoned.
type CutRelease struct{}

func (ev *CutRelease) apply(q *Queue) Answer {
	if refused := q.cutting(); refused != nil {
		return *refused
	}
	if q.holdsMembers() {
		if wait, err := q.unflushed(q.explicit.round); wait || err != nil {
			q.explicit.members[0] = true
		}
		q.explicit.flushed[0] = true
		q.unblock(WaitTask, WaitFlush)
	}
	return q.stepAnswer()
}

// CutFence ends the sessions of the named members that hold no task and have not flushed the cut. Such a process may hang
// while its heartbeats continue, and then no task deadline ends the wait. The answer is as for CutReady. Each session deletes
// a key, so at most MaxFenced sessions end. The other trainers keep their sessions until the next CutFence.
type CutFence struct {
	Step     uint64
	Trainers []string
}

// MaxFenced is how many sessions one CutFence ends: a transaction writes a bounded number of keys.
//
//guard:fenced-per-transaction
const MaxFenced = 40

func (ev *CutFence) apply(q *Queue) Answer {
	if refused := q.cutting(); refused != nil {
		return *refused
	}
	if ev.Step != q.explicit.round || !q.holdsMembers() {
		return Answer{Err: fmt.Errorf("%w: cut %d is under way, found %d", ErrOtherStep, q.explicit.round, ev.Step)}
	}
	fenced := 0
	for _, id := range ev.Trainers {
		if t := q.byID[id]; t != nil && q.isIdle(t) && fenced < MaxFenced {
			q.lose(t, false)
			fenced++
		}
	}
	return (&CutReady{ev.Step}).apply(q)
}

// isIdle reports whether a cut waits for a trainer without a task.
func (q *Queue) isIdle(t *trainer) bool { return q.toFlush(t) && !t.gone && len(t.holds) == 0 }

// Idle names the trainers without a task that a cut waits for.
func (q *Queue) Idle() (ids []string) {
	for _, t := range q.sortedTrainers() {
		if q.isIdle(t) {
			ids = append(ids, t.id)
		}
	}
	return ids
}

// Unflushed names the trainers that a cut waits for: such a process may hang while its heartbeats continue. A trainer with a
// task is lost when the task times out. A trainer without a task is lost by [CutFence].
func (q *Queue) Unflushed() (ids []string) {
	if !q.holdsMembers() {
		return nil
	}
	for _, t := range q.sortedTrainers() {
		if !t.gone && !q.explicit.flushed[t.ordinal] && (q.explicit.members[t.ordinal] || t.holdsTraining()) {
			ids = append(ids, t.id)
		}
	}
	return ids
}

// CutWatch waits until a cut waits for the sender; Place.Round is its number. It ends when the job fails.
type CutWatch struct {
	Trainer     Ordinal
	Incarnation uint64
}

func (ev *CutWatch) apply(q *Queue) Answer {
	t, refused := q.member(ev.Trainer, ev.Incarnation)
	switch {
	case refused != nil:
		return *refused
	case t == nil:
		return Answer{Kind: AnswerRejoin}
	//guard:failed-job-ends-cut-watch
	case q.status == Failed:
		return Answer{Kind: AnswerFailed}
	case !q.toFlush(t):
		return Answer{Kind: AnswerWait}
	}
	return q.stepAnswer()
}

// Steps is where the steps stand; zero in a job without.
func (q *Queue) Steps() (p StepPlace) {
	if q.explicit != nil {
		p = q.stepPlace()
	}
	return p
}

// StepsDue returns the actions that the leader of a job with Options.Cuts must take next.
func (q *Queue) StepsDue() (due StepsDue) {
	if q.explicit == nil || q.status == Ended || q.status == Failed {
		return due
	}
	due.Release = q.holdsMembers()
	switch {
	case q.explicit.lost > 0 || q.misplaced():
		due.Rollback = true
	case q.uncommitted() >= q.opt.MaxUncommitted*3/4, q.waitsFor() == WaitCommit:
		due.Commit = true
	}
	return due
}

// StepsDue lists the actions that are due.
type StepsDue struct {
	Release  bool // members are quiesced: if no cut is in progress, only the leader can release them
	Commit   bool // few or no tasks are dispatched before a commit
	Rollback bool // no task is dispatched before a rollback
}
