package sim

import (
	"errors"
	"net/rpc"
	"slices"
	"time"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// answers checks the answer to a caller against the stored state.
func (c *check) answers(e *pendingEvent, a taskqueue.Answer, err error) {
	if err != nil || e.ctx.Err() != nil {
		return
	}
	if c.untrusted {
		c.breaks("no answer without a valid lease", "%T is answered without a commit after the lease may have expired", e.event)
	}
	if _, ok := e.event.(*taskqueue.LastStep); ok && a.Kind == taskqueue.AnswerStep && a.Place.Step < c.step && c.stepAt < e.at {
		c.breaks("the step to load is the last committed one", "committed %d, answered %d", c.step, a.Place.Step)
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
		if s != nil && s.incarnation == r.Incarnation && !s.lost && !s.left && s.term <= e.term { // a copy may reach a former leader
			c.breaks("a session outlives its master", "trainer %d must join again", r.Trainer)
		}
	case taskqueue.AnswerTask:
		c.taskAnswer(r, a.Token)
		for _, more := range a.More {
			c.furtherAnswer(r, more.Token)
		}
	case taskqueue.AnswerEnded, taskqueue.AnswerFailed:
		if !c.over() {
			c.breaks("the end of a job is stored before it is answered", "to trainer %d", r.Trainer)
		}
	}
}

// returned checks that a trainer holds no task of an acknowledged request that it does not list.
func (c *check) returned(r *taskqueue.Request) {
	for _, e := range c.state.live {
		for _, h := range e.holders {
			tok := taskqueue.Token{Epoch: c.state.Epoch, Pass: e.pass, Position: e.position, Attempt: h.attempt}
			if h.trainer == r.Trainer && h.request < r.Ack && !slices.Contains(r.Held, tok) {
				c.breaks("a task with a lost reply is returned", "%v, for request %d of trainer %d, which is at %d", tok, h.request, r.Trainer, r.Ack)
			}
		}
	}
}

// verdict checks that a counted finish is stored, and that a finish of a dispatched attempt counts
// in an open pass.
func (c *check) verdict(r taskqueue.Result, status taskqueue.FinishStatus, at time.Duration) {
	if c.world.plan.exact && r.Token.Epoch != c.state.Epoch {
		return // its own commit may have rolled it back
	}
	if c.world.heldOut != nil && r.Token.Dataset > 0 {
		c.rounds.verdict(c.world, r, status)
		return
	}
	h := c.tasks[taskPosition{r.Token.Pass, r.Token.Position}]
	genuine := h != nil && h.attempts[r.Token.Attempt] != nil && r.Token.Epoch == c.state.Epoch && r.Token.Dataset == 0 && r.Token.Kind == 0
	switch status {
	case taskqueue.Counted:
		if !genuine {
			c.breaks("only a dispatched attempt counts", "%v", r.Token)
			return
		}
		fallthrough
	case taskqueue.AlreadyCounted:
		if (h == nil || !h.finished && h.applied == 0) && !c.closed[r.Token.Pass] { // tasks of a closed pass are not looked up
			c.breaks("an answer is stored", "%v is %v, and not finished by the ledger", r.Token, status)
		}
	case taskqueue.Stale:
		if r.Error == "" && genuine && h.attempts[r.Token.Attempt].at < at && c.state.open(r.Token.Pass) {
			c.breaks("a late finish counts", "%v is %v", r.Token, status)
		}
	}
}

// furtherAnswer checks that a further task of an answer is stored.
func (c *check) furtherAnswer(r *taskqueue.Request, tok taskqueue.Token) {
	h := c.tasks[taskPosition{tok.Pass, tok.Position}]
	if h == nil || h.attempts[tok.Attempt] == nil || h.attempts[tok.Attempt].trainer != r.Trainer {
		c.breaks("an answer is stored", "%v for trainer %d is not in the ledger", tok, r.Trainer)
	}
}

// taskAnswer checks that a request is answered with one task.
func (c *check) taskAnswer(r *taskqueue.Request, tok taskqueue.Token) {
	if tok.Dataset > 0 {
		return // the token has the pass of the round
	}
	d := dispatch{taskPosition{tok.Pass, tok.Position}, tok.Attempt}
	h := c.tasks[d.taskPosition]
	if h == nil || h.attempts[d.attempt] == nil || h.attempts[d.attempt].trainer != r.Trainer {
		c.breaks("an answer is stored", "%v for trainer %d is not in the ledger", tok, r.Trainer)
		return
	}
	key := request{r.Trainer, r.Incarnation, r.Seq}
	if old, ok := c.answered[key]; ok && old != d && h.attempts[d.attempt].open { // the trainer recognizes a late answer
		if was := c.tasks[old.taskPosition].attempts[old.attempt]; was.open {
			c.breaks("a request has one answer", "request %d of trainer %d got %v and %v", r.Seq, r.Trainer, old, d)
		}
	}
	c.answered[key] = d
}

// unexpectedError checks that a failover or a broken connection causes no error of a trainer.
func (c *check) unexpectedError(t *trainer, err error) {
	t.note("%s: %v", t.name, err)
	if _, answered := errors.AsType[rpc.ServerError](err); !answered || errors.Is(err, wire.ErrNotLeader) {
		c.breaks("a failover causes no error", "%s: %v", t.name, err)
	}
}
