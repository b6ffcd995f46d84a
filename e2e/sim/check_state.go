package sim

import (
	"strings"

	"trainmaster/taskqueue"
)

// columns checks that each task of an open pass is in one state, and that no acknowledged finish is undone.
func (c *check) columns(next *stored) {
	if next.set == nil {
		return
	}
	most := 1
	if c.world.plan.options.Rolling {
		most = 2
	}
	if len(next.set.Open) > most {
		c.breaks("a pass begins when it may", "%d are open", len(next.set.Open))
	}
	live := map[taskPosition]bool{}
	for _, e := range next.live {
		p := taskPosition{e.pass, e.position}
		if live[p] || !next.open(e.pass) || e.position < 0 || e.position >= next.dispatched(e.pass) {
			c.breaks("a task is in one state", "pass %d, position %d is live twice, or beyond the cursor, or in a closed pass", e.pass, e.position)
		}
		live[p] = true
		c.holders(next, e)
	}
	for _, open := range next.set.Open {
		c.openPass(next, open, live)
	}
	if c.world.plan.exact {
		c.since(next)
	}
	c.windows(next)
	if n, limit := len(next.set.Live)+len(next.set.Aside)+len(next.set.Since), 24+40*(len(next.live)+len(next.aside)+len(next.since)); n > limit {
		c.breaks("the state is O(pending)", "%d bytes for %d live and %d set aside", n, len(next.live), len(next.aside))
	}
}

// windows checks that a session holds at most the tasks of its window, and that the clock of one of them runs.
func (c *check) windows(next *stored) {
	if c.world.plan.heldOut > 0 {
		return // the clock of a task of another dataset can run instead
	}
	held, running := map[taskqueue.Ordinal]int{}, map[taskqueue.Ordinal]int{}
	for _, e := range next.live {
		for _, h := range e.holders {
			held[h.trainer]++
			if h.age > 0 {
				running[h.trainer]++
			}
		}
	}
	for o, n := range held {
		s := c.sessions[o]
		if s == nil || s.plain() {
			continue
		}
		most := 2
		for _, t := range c.world.trainers {
			if t.id == s.id {
				most = max(most, t.habit.window)
			}
		}
		if n > most {
			c.breaks("a session holds the tasks of its window", "trainer %d holds %d, its window is %d", o, n, most)
		}
		if running[o] != 1 {
			c.breaks("the clock of one task of a session runs", "trainer %d: %d of %d", o, running[o], n)
		}
	}
}

func (c *check) holders(next *stored, e liveRow) {
	h := c.tasks[taskPosition{e.pass, e.position}]
	if h != nil && h.finished {
		c.breaks("an acknowledged finish is never undone", "pass %d, position %d is live again in commit %d", e.pass, e.position, next.Commit)
	}
	if len(e.holders) > 1 && !c.world.plan.options.Speculate {
		c.breaks("a task has one holder", "pass %d, position %d has %d without speculation", e.pass, e.position, len(e.holders))
	}
	for _, holder := range e.holders {
		if h == nil || h.attempts[holder.attempt] == nil || !h.attempts[holder.attempt].open || h.attempts[holder.attempt].trainer != holder.trainer {
			c.breaks("the ledger and the state agree", "pass %d, position %d: held by trainer %d, attempt %d, in the state only", e.pass, e.position, holder.trainer, holder.attempt)
			return
		}
		if s := c.sessions[holder.trainer]; (s == nil || s.lost) && !c.world.plan.exact {
			c.breaks("tasks of a lost trainer are returned", "pass %d, position %d is held by trainer %d", e.pass, e.position, holder.trainer)
		}
	}
}

// openPass checks that each dispatched task is counted, live, set aside or uncommitted, and in one state only.
func (c *check) openPass(next *stored, open taskqueue.OpenPass, live map[taskPosition]bool) {
	counted, pending := 0, 0
	for p, h := range c.tasks {
		if p.pass == open.Pass && h.finished {
			counted++
		}
	}
	for p := range live {
		if p.pass == open.Pass {
			pending++
		}
	}
	if counted != open.Counted {
		c.breaks("the ledger and the state agree", "pass %d: %d finished in the ledger, %d counted in the state", open.Pass, counted, open.Counted)
	}
	aside := 0
	for _, a := range next.aside {
		if !a.missing(open.Pass) {
			continue
		}
		if position := c.world.order(open.Pass, a.index); position < next.dispatched(open.Pass) {
			aside++
			if h := c.tasks[taskPosition{open.Pass, position}]; h != nil && h.finished {
				c.breaks("an acknowledged finish is never undone", "pass %d, position %d is finished and set aside", open.Pass, position)
			}
		}
	}
	waiting := 0
	for _, row := range next.since {
		if row.pass == open.Pass {
			waiting++
		}
	}
	if counted+pending+aside+waiting != next.dispatched(open.Pass) {
		c.breaks("a task is in one state", "pass %d: %d counted, %d live, %d set aside, %d uncommitted, of %d dispatched", open.Pass, counted, pending, aside, waiting, next.dispatched(open.Pass))
	}
}

// keys checks that exactly the set-aside tasks are listed, and that the roster has no more keys than sessions.
func (c *check) keys(next *stored) {
	prefix := taskqueue.AsidePrefix + "0/" // of the training dataset
	listed := 0
	roster := map[string]bool{}
	for key := range c.world.etcd.keys {
		switch {
		case strings.HasPrefix(key, prefix):
			listed++
		case strings.HasPrefix(key, taskqueue.RosterPrefix):
			roster[key] = true
		}
	}
	for _, a := range next.aside {
		if c.world.etcd.keys[taskqueue.AsideKey(0, a.index)] == nil {
			c.breaks("set-aside tasks are listed", "task %d is not", a.index)
		}
	}
	if listed != len(next.aside) {
		c.breaks("set-aside tasks are listed", "%d are set aside, %d are listed", len(next.aside), listed)
	}
	sessions := 0
	for _, s := range c.sessions {
		if !s.lost {
			sessions++
		}
	}
	if len(roster) > sessions && !c.world.plan.exact { // with explicit commits, a trainer that is lost with a task stays in the roster until a rollback
		c.breaks("the roster has the sessions", "%d keys for %d sessions", len(roster), sessions)
	}
}
