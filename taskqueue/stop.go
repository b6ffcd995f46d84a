package taskqueue

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// A stop is about one dispatch of a task, and follows from the committed state alone: the task was dispatched again, or it is counted. Both
// are final, so a stop can be repeated, can arrive late, and never concerns another dispatch. The state stores no stops. A trainer lists
// its tasks in each heartbeat, and any leader answers with the ones to stop.

// stops returns the dispatches to stop among the dispatches that a trainer reports.
func (q *Queue) stops(t *trainer, has []Token) (list []Token) {
	for _, tok := range has {
		if q.superseded(t, tok) {
			list = append(list, tok)
		}
	}
	return list
}

// superseded reports whether the result of a dispatch is useless. A task that only timed out may still be finished by its former holder.
func (q *Queue) superseded(t *trainer, tok Token) bool {
	_, e, status := q.locate(tok)
	switch {
	case status == AlreadyCounted:
		return true
	case status != Counted || e == nil: // it names no dispatch, or the task is set aside
		return false
	}
	for _, h := range e.holders[:e.holderCount] {
		if h.trainer == t && h.attempt == tok.Attempt {
			return false
		}
	}
	//guard:stop-after-next-dispatch
	return tok.Attempt+1 < e.next
}

// StopDue asks for the stops of a trainer, at its address for commands or on its stream. It is not outstanding in a new term: the trainer receives the
// same stops in the replies to its heartbeats.
type StopDue struct {
	Trainer Ordinal
	ID      string
	Address string // "ip:port"; "": it has none
	Stops   []Token
}

// Key implements Effect. The trainer takes the place of the dataset.
func (e StopDue) Key() EffectKey { return EffectKey{Kind: OnStopDue, Set: int(e.Trainer)} }

// stopFormer raises the stops of the former holders of a task that is dispatched again or counted. The effect has all stops of a trainer,
// because it replaces an earlier effect; it is raised for a new stop only.
func (q *Queue) stopFormer(e *entry) {
	for _, t := range e.former {
		if t.gone {
			continue
		}
		due, isNew := StopDue{Trainer: t.ordinal, ID: t.id, Address: t.control}, false
		for i := range t.late {
			//guard:stop-raised
			if l := &t.late[i]; q.superseded(t, l.token) {
				isNew = isNew || !l.stopped
				l.stopped = true
				due.Stops = append(due.Stops, l.token)
			}
		}
		if isNew {
			q.raise(due)
		}
	}
}

// ProgressDue asks for the progress of a trainer: half of the time of its task has passed. If the trainer
// moves within Within, the component submits Moved.
type ProgressDue struct {
	Trainer     Ordinal
	Incarnation uint64
	Address     string // "ip:port"; "": it has none, and reports progress with its heartbeats
	Task        Token
	Within      time.Duration
}

// Key implements Effect. The trainer takes the place of the dataset.
func (e ProgressDue) Key() EffectKey { return EffectKey{Kind: OnProgressDue, Set: int(e.Trainer)} }

// late returns the running tasks of t of whose time more than half has passed.
func (q *Queue) late(t *trainer) (list []Token) {
	for _, e := range t.holds {
		//guard:late-task-named
		if h := e.holderOf(t); h.start != 0 && q.clock.Add(q.timeoutOf(e)/2) >= h.soft {
			list = append(list, q.token(e, h.attempt))
		}
	}
	return list
}

// askProgress raises ProgressDue once for each deadline.
func (q *Queue) askProgress(e *entry, h *holder) {
	if h.trainer.plain || h.start == 0 || h.asked {
		return
	}
	half := q.timeoutOf(e) / 2
	//guard:progress-asked
	if q.clock.Add(half) >= h.soft {
		h.asked = true
		q.raise(ProgressDue{Trainer: h.trainer.ordinal, Incarnation: h.trainer.incarnation, Address: h.trainer.control, Task: q.token(e, h.attempt), Within: half / 2})
	}
}

// StopTasks takes the running tasks of a trainer away without a failure, and stops them there. Answer.Stops has them. Each skips an attempt,
// so that any leader knows the stop from the number of the next attempt.
type StopTasks struct{ ID string }

// ErrNoCommands is returned for a trainer that receives no commands.
var ErrNoCommands = errors.New("trainer receives no commands")

func (ev *StopTasks) apply(q *Queue) Answer {
	t := q.byID[ev.ID]
	switch {
	case t == nil || t.gone:
		return Answer{Err: fmt.Errorf("%w: %q; %s", ErrNoTrainer, ev.ID, q.trainerNames())}
	case t.plain:
		return Answer{Err: fmt.Errorf("%w: %q has no session: expected a trainer that has joined", ErrNoCommands, ev.ID)}
	}
	running := slices.DeleteFunc(slices.Clone(t.holds), func(e *entry) bool { return e.holderOf(t).start == 0 }) // without prefetched tasks
	//guard:operator-stops-no-uncommitted-task
	if slices.ContainsFunc(running, func(e *entry) bool { return q.countsWithStep(e.set) }) {
		return Answer{Err: fmt.Errorf("%w: a task of %q would be dispatched again by a rollback only: drain the trainer, or end its process", ErrExplicit, ev.ID)}
	}
	var stopped []Token
	for _, e := range running {
		if q.ofOwnRound(e) {
			stopped = append(stopped, q.token(e, e.holderOf(t).attempt))
			q.endOwnRound("its task was stopped by an operator")
			continue
		}
		h := *e.holderOf(t)
		tok := q.token(e, h.attempt)
		//guard:operator-stop-skips-attempt
		e.next++
		q.detach(e, t)
		q.ledger.returned(e, t.ordinal, h.attempt)
		q.retryOrSetAside(e)
		stopped = append(stopped, tok)
		q.notice(false, "task stopped by an operator", map[string]any{"trainer": t.id, "task": tok.String()})
	}
	if len(stopped) == 0 {
		return Answer{}
	}
	if len(t.holds) > 0 && !t.running() {
		next := t.holds[0]
		q.start(next, next.holderOf(t))
	}
	q.raise(StopDue{Trainer: t.ordinal, ID: t.id, Address: t.control, Stops: stopped})
	return Answer{Stops: stopped}
}
