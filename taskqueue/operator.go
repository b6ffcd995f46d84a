package taskqueue

import (
	"fmt"
	"slices"
	"strings"
)

// This file has the events of an operator, except RetryAside.

// pausedByOperator begins the reason of a pause by an operator. Such a pause ends only with Resume. A pause because of too
// many set-aside tasks also ends when enough of them are retried.
const pausedByOperator = "paused by an operator"

// Pause stops dispatches until Resume. Finishes count, and the clocks of the running tasks continue. A paused job takes the
// new reason.
type Pause struct{ Reason string }

func (ev *Pause) apply(q *Queue) Answer {
	if q.hasEnded() {
		return Answer{Err: fmt.Errorf("%w: it is %s", ErrJobOver, q.status)}
	}
	reason := pausedByOperator
	if ev.Reason != "" {
		reason += ": " + clip(ev.Reason)
	}
	if q.status == Paused && q.reason == reason {
		return Answer{}
	}
	q.pause(reason)
	return Answer{}
}

// Resume continues a paused job, for whatever reason it is paused. It does not change a running job.
type Resume struct{}

func (ev *Resume) apply(q *Queue) Answer {
	if q.hasEnded() {
		return Answer{Err: fmt.Errorf("%w: it is %s", ErrJobOver, q.status)}
	}
	q.resume()
	return Answer{}
}

// Fail ends a job that cannot continue. The state Failed is final. A job that has ended keeps its state.
type Fail struct{ Reason string }

func (ev *Fail) apply(q *Queue) Answer {
	if !q.hasEnded() {
		q.end(Failed, ev.Reason)
		q.unblock(WaitTask, WaitFlush, WaitStep)
	}
	if q.status == Ended {
		return Answer{Kind: AnswerEnded}
	}
	return Answer{Kind: AnswerFailed}
}

func (q *Queue) hasEnded() bool { return q.status == Ended || q.status == Failed }

func (q *Queue) pause(reason string) {
	q.status, q.reason, q.dirty = Paused, reason, true
	q.ledger.paused(reason)
	q.notice(!strings.HasPrefix(reason, pausedByOperator), "job paused", map[string]any{"reason": reason})
}

func (q *Queue) resume() {
	if q.status != Paused {
		return
	}
	q.status, q.reason, q.dirty = Running, "", true
	q.ledger.resumed()
	q.notice(false, "job resumed", nil)
}

// Drain lets a trainer finish its running task, and then asks it to leave (AnswerDrained). Its prefetched tasks go back
// uncharged. A trainer with a window keeps its tasks until it leaves, since it may have begun any of them. Drain holds for
// this incarnation: a trainer that joins again gets tasks.
type Drain struct{ ID string }

func (ev *Drain) apply(q *Queue) Answer {
	t := q.byID[ev.ID]
	if t == nil || t.gone {
		return Answer{Err: fmt.Errorf("%w: %q; %s", ErrNoTrainer, ev.ID, q.trainerNames())}
	}
	if t.draining {
		return Answer{}
	}
	q.endOwnRoundOf(t, "it is being drained")
	t.draining = true
	q.saveTrainer(t)
	q.unblock(WaitTask)
	q.ledger.draining(t)
	q.notice(false, "trainer draining", map[string]any{"trainer": t.id, "incarnation": t.incarnation, "tasks": len(t.holds)})
	//guard:drained-window-keeps-its-tasks
	if q.explicit != nil || t.window > 0 {
		return Answer{} // it may have begun each of its tasks
	}
	for _, e := range slices.Backward(slices.Clone(t.holds)) {
		if h := *e.holderOf(t); h.start == 0 {
			q.release(e, t)
			q.ledger.returned(e, t.ordinal, h.attempt)
			q.retryOrSetAside(e)
		}
	}
	return Answer{}
}

// DropTask drops a set-aside task: it stays set aside permanently. A retry or a late finish does not return it to the queue.
type DropTask struct {
	Set   int
	Index int
}

func (ev *DropTask) apply(q *Queue) Answer {
	if q.hasEnded() {
		return Answer{Err: fmt.Errorf("%w: it is %s", ErrJobOver, q.status)}
	}
	a, err := q.asideTask(ev.Set, ev.Index)
	if err != nil {
		return Answer{Err: err}
	}
	if a.dropped {
		return Answer{}
	}
	a.dropped, q.dirty = true, true
	q.ledger.dropped(ev.Set, ev.Index)
	q.notice(false, "task dropped", map[string]any{"set": ev.Set, "task": ev.Index})
	return Answer{}
}

// asideTask finds a set-aside task. The error lists the set-aside tasks.
func (q *Queue) asideTask(set, index int) (*asideTask, error) {
	if set < 0 || set >= len(q.sets) {
		return nil, fmt.Errorf("%w: task %d of dataset %d; there are %d datasets", ErrNotAside, index, set, len(q.sets))
	}
	s := q.sets[set]
	if a := s.aside[index]; a != nil {
		return a, nil
	}
	if index < 0 || index >= s.tasks {
		return nil, fmt.Errorf("%w: task %d of dataset %d; its %d tasks are numbered from 0", ErrNotAside, index, set, s.tasks)
	}
	var names []string
	for _, a := range s.sortedAside() {
		names = append(names, fmt.Sprint(a.index))
	}
	return nil, fmt.Errorf("%w: task %d of dataset %d; %s", ErrNotAside, index, set, some("set aside are", "no task is set aside", names))
}

func (q *Queue) trainerNames() string {
	var names []string
	for _, t := range q.sortedTrainers() {
		if !t.gone {
			names = append(names, t.id)
		}
	}
	return some("there are", "there is none", names)
}

const namesShown = 20

// some lists names after head, at most namesShown of them.
func some(head, none string, names []string) string {
	switch more := len(names) - namesShown; {
	case len(names) == 0:
		return none
	case more > 0:
		return fmt.Sprintf("%s %s and %d more", head, strings.Join(names[:namesShown], ", "), more)
	}
	return head + " " + strings.Join(names, ", ")
}
