package sim

import (
	"strings"

	"trainmaster/taskqueue"
)

// applyEvents updates the expected state by the events of a commit.
func (c *check) applyEvents(before, next *stored, value []byte) {
	if err := c.verifier.Add(next.Commit, value); err != nil {
		c.breaks("the ledger is consistent", "%v", err)
		return
	}
	clear(c.joins)
	clear(c.charged)
	for ev, err := range taskqueue.LedgerEvents(value) {
		if err == nil && ev.Kind == taskqueue.EventJoined {
			c.joins[ev.ID] = true // the previous session with this id is lost
		}
		if err == nil && c.world.plan.exact && (ev.Kind == taskqueue.EventTimedOut || ev.Kind == taskqueue.EventFailed) {
			c.charged[ev.Trainer] = true
		}
	}
	for ev, err := range taskqueue.LedgerEvents(value) {
		if err != nil {
			c.breaks("the ledger is consistent", "%v", err)
			return
		}
		c.world.note("  %+v", ev)
		c.event(before, next, &ev)
	}
}

func (c *check) event(before, next *stored, ev *taskqueue.LedgerEvent) {
	switch {
	case ev.Kind == taskqueue.EventAppended, ev.Kind == taskqueue.EventClosed:
		c.segments.segment(c.world, next, ev)
		return
	case ev.Set > 0:
		c.rounds.event(c.world, next, ev)
		return
	}
	p := taskPosition{ev.Pass, ev.Position}
	switch ev.Kind {
	case taskqueue.EventJoined:
		delete(c.fenced, ev.ID)
		c.sessions[ev.Trainer] = &sessionState{id: ev.ID, term: next.LockRevision, incarnation: ev.Incarnation, joined: c.heard[next.LockRevision].sent}
	case taskqueue.EventLost:
		c.lost(next, ev.Trainer)
	case taskqueue.EventDispatched:
		h := c.of(p)
		if h.finished || h.applied != 0 {
			c.breaks("a finished task is never dispatched again", "pass %d, position %d", ev.Pass, ev.Position)
		}
		if h.stuck {
			c.breaks("a task taken from a trainer is dispatched in a new epoch only", "pass %d, position %d", ev.Pass, ev.Position)
		}
		if h.attempts[ev.Attempt] != nil {
			c.breaks("an attempt is dispatched once", "pass %d, position %d, attempt %d", ev.Pass, ev.Position, ev.Attempt)
		}
		h.attempts[ev.Attempt] = &attempt{trainer: ev.Trainer, clock: next.Clock, term: next.LockRevision, at: c.world.now, open: true}
	case taskqueue.EventFinished:
		h := c.of(p)
		if h.finished {
			c.breaks("a task is counted once in a pass", "pass %d, position %d", ev.Pass, ev.Position)
		}
		if h.attempts[ev.Attempt] == nil {
			c.breaks("only a dispatched attempt counts", "pass %d, position %d, attempt %d", ev.Pass, ev.Position, ev.Attempt)
		}
		h.finished = true
		for _, a := range h.attempts {
			a.open = false
		}
		c.plainFinish(ev)
	case taskqueue.EventApplied:
		h := c.of(p)
		if h.finished || h.applied != 0 {
			c.breaks("a task is counted once in a pass", "pass %d, position %d", ev.Pass, ev.Position)
		}
		if h.attempts[ev.Attempt] == nil {
			c.breaks("only a dispatched attempt counts", "pass %d, position %d, attempt %d", ev.Pass, ev.Position, ev.Attempt)
		}
		h.applied = ev.Step
		for _, a := range h.attempts {
			a.open = false
		}
	case taskqueue.EventCommitted, taskqueue.EventRolledBack:
		c.steps(before, ev)
	case taskqueue.EventReturned, taskqueue.EventFailed, taskqueue.EventTimedOut:
		c.takenBack(next, ev)
	case taskqueue.EventSetAside:
		h := c.of(p)
		h.index, h.aside = ev.Index, true
		if limit := c.world.plan.options.MaxFailures; 3*h.failures+h.returns <= 3*limit {
			c.breaks("a task is set aside after too many failures", "pass %d, position %d: %d failures, %d returns, the limit is %d", ev.Pass, ev.Position, h.failures, h.returns, limit)
		}
	case taskqueue.EventRetried:
		c.retried++
		for _, h := range c.tasks {
			if h.aside && h.index == ev.Index {
				h.failures, h.returns, h.aside = 0, 0, false
			}
		}
	case taskqueue.EventPassClosed:
		c.closed[ev.Pass] = true
	case taskqueue.EventEnded:
		c.ended = ev.Status
		if ev.Status == taskqueue.Failed && !strings.Contains(ev.Reason, "counted nothing") {
			c.breaks("the sums of a pass add up", "%s", ev.Reason)
		}
	}
}

// takenBack checks that the trainer holds the task, and that a timeout is not early.
func (c *check) takenBack(next *stored, ev *taskqueue.LedgerEvent) {
	h := c.of(taskPosition{ev.Pass, ev.Position})
	a := h.attempts[ev.Attempt]
	if a == nil || !a.open || a.trainer != ev.Trainer {
		c.breaks("only a held task is taken back", "%+v", *ev)
		return
	}
	if c.world.plan.exact && ev.Kind != taskqueue.EventReturned {
		h.stuck = true // the trainer keeps it until a rollback
	} else {
		a.open = false
	}
	switch ev.Kind {
	case taskqueue.EventReturned:
		h.returns++
		return
	case taskqueue.EventFailed:
		h.failures++
		return
	}
	h.failures++
	least := c.world.plan.options.TimeoutMin
	if ran := next.Clock.Sub(a.clock); ran < least {
		c.breaks("no task times out early", "pass %d, position %d, attempt %d after %v", ev.Pass, ev.Position, ev.Attempt, ran)
	}
	if ran := next.Clock.Sub(c.begin[next.LockRevision]); a.term != next.LockRevision && ran < least && next.Clock.Sub(a.clock) < 10*least {
		c.breaks("a new term extends all deadlines", "pass %d, position %d, attempt %d timed out %v after the term began", ev.Pass, ev.Position, ev.Attempt, ran)
	}
}
