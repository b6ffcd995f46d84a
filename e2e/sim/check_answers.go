package sim

import (
	"errors"
	"net/rpc"
	"slices"
	"time"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// answers checks what a caller is told against what is stored.
func (c *check) answers(e *errand, a taskqueue.Answer, err error) {
	if err != nil || e.ctx.Err() != nil {
		return
	}
	if c.untrusted {
		c.breaks("answers end with the lease", "%T is answered without a commit after the lease may have run out", e.event)
	}
	if _, ok := e.event.(*taskqueue.LastStep); ok && a.Kind == taskqueue.AnswerStep && a.Place.Step < c.step && c.stepAt < e.at {
		c.breaks("the step to load is the last committed one", "it is %d, and %d is told", c.step, a.Place.Step)
	}
	if ask, ok := e.event.(*taskqueue.PlainAsk); ok {
		c.plainAnswer(e, ask, a)
		return
	}
	r, ok := e.event.(*taskqueue.Request)
	if !ok {
		return
	}
	for i, status := range a.Finishes {
		if i < len(r.Finished) {
			c.verdict(r.Finished[i], status, e.at)
		}
	}
	s := c.sessions[r.Trainer]
	if c.newest[r.Trainer] == r && a.Kind != taskqueue.AnswerRejoin {
		c.returned(r)
	}
	switch a.Kind {
	case taskqueue.AnswerRejoin:
		if s != nil && s.incarnation == r.Incarnation && !s.lost && !s.left && s.term <= e.term { // a copy may reach one who led before
			c.breaks("a session outlives its master", "trainer %d is told to join again", r.Trainer)
		}
	case taskqueue.AnswerTask:
		c.handed(r, a.Token)
	case taskqueue.AnswerEnded, taskqueue.AnswerFailed:
		if !c.over() {
			c.breaks("the end is told when it is stored", "to trainer %d", r.Trainer)
		}
	}
}

// returned: what a trainer does not list, and will not ask for again, is not held for it.
func (c *check) returned(r *taskqueue.Request) {
	for _, e := range c.state.live {
		for _, h := range e.holders {
			tok := taskqueue.Token{Epoch: c.state.Epoch, Pass: e.pass, Position: e.position, Attempt: h.attempt}
			if h.trainer == r.Trainer && h.request < r.Ack && !slices.Contains(r.Held, tok) {
				c.breaks("a task whose reply was lost goes back", "%v, for request %d of trainer %d, which is at %d", tok, h.request, r.Trainer, r.Ack)
			}
		}
	}
}

// verdict: a finish that counted is stored; one that names what was handed out in an open
// pass counts.
func (c *check) verdict(r taskqueue.Result, status taskqueue.FinishStatus, at time.Duration) {
	if c.world.plan.exact && r.Token.Epoch != c.state.Epoch {
		return // it may have been rolled back in the commit that took it
	}
	h := c.tasks[place{r.Token.Pass, r.Token.Position}]
	genuine := h != nil && h.attempts[r.Token.Attempt] != nil && r.Token.Epoch == c.state.Epoch && r.Token.Dataset == 0 && r.Token.Kind == 0
	switch status {
	case taskqueue.Counted:
		if !genuine {
			c.breaks("only what was handed out counts", "%v", r.Token)
			return
		}
		fallthrough
	case taskqueue.AlreadyCounted:
		if (h == nil || !h.finished && h.applied == 0) && !c.closed[r.Token.Pass] { // a closed pass is not looked up
			c.breaks("what is answered is stored", "%v is %v, and not finished by the ledger", r.Token, status)
		}
	case taskqueue.Stale:
		if r.Error == "" && genuine && h.attempts[r.Token.Attempt].moment < at && c.state.open(r.Token.Pass) {
			c.breaks("a late finish counts", "%v is %v", r.Token, status)
		}
	}
}

// handed: one request is answered by one task.
func (c *check) handed(r *taskqueue.Request, tok taskqueue.Token) {
	d := dispatch{place{tok.Pass, tok.Position}, tok.Attempt}
	h := c.tasks[d.place]
	if h == nil || h.attempts[d.attempt] == nil || h.attempts[d.attempt].trainer != r.Trainer {
		c.breaks("what is answered is stored", "%v for trainer %d is not in the ledger", tok, r.Trainer)
		return
	}
	key := request{r.Trainer, r.Incarnation, r.Seq}
	if old, ok := c.answered[key]; ok && old != d && h.attempts[d.attempt].open { // else it is late, and the trainer knows it
		if was := c.tasks[old.place].attempts[old.attempt]; was.open {
			c.breaks("a request has one answer", "request %d of trainer %d got %v and %v", r.Seq, r.Trainer, old, d)
		}
	}
	c.answered[key] = d
}

// surprises: a fail-over or a broken connection costs a trainer a pause and no error.
func (c *check) surprises(t *trainer, err error) {
	t.note("%s: %v", t.name, err)
	if _, answered := errors.AsType[rpc.ServerError](err); !answered || errors.Is(err, wire.ErrNotLeader) {
		c.breaks("a fail-over costs no error", "%s: %v", t.name, err)
	}
}
