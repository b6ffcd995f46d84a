package sim

import (
	"strings"
	"time"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// delivery identifies a task of a plain client by the data that the client read, not by its token.
type delivery struct {
	pass   taskqueue.Pass
	path   string
	offset int64
}

// trainedTask records a task that a plain client trained.
func (c *check) trainedTask(task taskqueue.Task) {
	c.trained[deliveryOf(task.Token.Pass, task.Chunks[0])] = true
}

func deliveryOf(p taskqueue.Pass, c taskqueue.Chunk) delivery {
	return delivery{p, c.Path, c.Index.Offset}
}

func (s *sessionState) plain() bool { return strings.HasPrefix(s.id, "conn-") }

// plainFinish checks that the client of a plain connection trained the task that it finishes.
func (c *check) plainFinish(ev *taskqueue.LedgerEvent) {
	s := c.sessions[ev.Trainer]
	if s == nil || !s.plain() || c.world.plan.faults.forge != 0 {
		return
	}
	index := c.index(ev.Pass, ev.Position)
	if !c.trained[deliveryOf(ev.Pass, c.world.table.TaskChunks(index)[0])] {
		c.breaks("a plain connection finishes only trained tasks", "pass %d, position %d, task %d", ev.Pass, ev.Position, index)
	}
}

// index returns the task at a position of a pass.
func (c *check) index(pass taskqueue.Pass, position int) int {
	for index := range c.world.plan.tasks {
		if c.world.order(pass, index) == position {
			return index
		}
	}
	return -1
}

// disconnected checks that the session of a closed plain connection has ended.
func (c *check) disconnected(who wire.Trainer) {
	if s := c.sessions[who.Ordinal]; s != nil && s.incarnation == who.Incarnation && !s.lost {
		c.breaks("a closed connection has no session", "trainer %d, %s", who.Ordinal, s.id)
	}
}

// plainLost checks that the session of a plain connection ends only with the connection or the
// term.
func (c *check) plainLost(next *stored, o taskqueue.Ordinal, s *sessionState) {
	if s.term != next.LockRevision {
		return
	}
	if _, closed := c.heard[next.LockRevision].gone[o]; !closed {
		c.breaks("an open connection keeps its session", "trainer %d, %s", o, s.id)
	}
}

// plainAnswer checks the answer to a plain connection.
func (c *check) plainAnswer(e *pendingEvent, ask *taskqueue.PlainAsk, a taskqueue.Answer) {
	s := c.sessions[ask.Trainer]
	for _, status := range a.Finishes {
		if ask.Task != 0 {
			c.verdict(taskqueue.Result{Token: c.numbered[ask.Task], Error: ask.Error}, status, e.at)
			continue
		}
		h := c.tasks[taskPosition{ask.Token.Pass, ask.Token.Position}]
		mine := h != nil && h.attempts[ask.Token.Attempt] != nil && h.attempts[ask.Token.Attempt].trainer == ask.Trainer && !h.finished && !s.lost
		if status != taskqueue.Stale || mine && c.index(ask.Token.Pass, ask.Token.Position) == ask.Index && c.hasRead(ask) {
			c.verdict(taskqueue.Result{Token: ask.Token, Error: ask.Error}, status, e.at)
		}
	}
	switch a.Kind {
	case taskqueue.AnswerTask:
		h := c.tasks[taskPosition{a.Token.Pass, a.Token.Position}]
		if h == nil || h.attempts[a.Token.Attempt] == nil || h.attempts[a.Token.Attempt].trainer != a.Ordinal {
			c.breaks("an answer is stored", "%v for connection %s is not in the ledger", a.Token, ask.Connection)
		}
	case taskqueue.AnswerEnded, taskqueue.AnswerFailed:
		if !c.over() {
			c.breaks("the end of a job is stored before it is answered", "to connection %s", ask.Connection)
		}
	}
}

// hasRead reports whether a client has read the chunk of the task that it finishes.
func (c *check) hasRead(ask *taskqueue.PlainAsk) bool {
	chunk := c.world.table.TaskChunks(ask.Index)
	return ask.Offsets == 0 || ask.Offsets == offsetsOf(taskqueue.Task{Chunks: chunk})
}

// ticked checks that a tick ends the sessions of plain connections of earlier terms, unless a
// commit failed since the round began.
func (c *check) ticked(k *lock, began time.Duration) {
	t := c.heard[k.term.Revision]
	if k.gone || t == nil || t.failed >= began {
		return
	}
	for o, s := range c.sessions {
		if s.plain() && !s.lost && s.term < k.term.Revision {
			c.breaks("a plain connection ends with its term", "trainer %d, %s, of term %d", o, s.id, s.term)
		}
	}
}
