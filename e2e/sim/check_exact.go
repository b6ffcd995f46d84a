package sim

import (
	"fmt"
	"maps"
	"slices"

	"trainmaster/taskqueue"
)

// steps records a commit or a rollback of steps.
func (c *check) steps(before *stored, ev *taskqueue.LedgerEvent) {
	rings := c.world.rings
	c.stepped = true
	switch ev.Kind {
	case taskqueue.EventCommitted:
		if ev.Step <= c.step || ev.Generation != c.generation {
			c.breaks("a committed step is never undone", "step %d of generation %d is committed after step %d, in generation %d", ev.Step, ev.Generation, c.step, c.generation)
		}
		if rings.committed = c.saved(ev); rings.committed == nil {
			return
		}
		c.step, c.stepAt = ev.Step, c.world.now
		for _, h := range c.tasks {
			if h.applied != 0 && h.applied <= ev.Step {
				h.applied, h.finished = 0, true
			}
		}
	case taskqueue.EventRolledBack:
		if ev.Step != c.step || ev.Generation <= c.generation || ev.Epoch <= before.Epoch || rings.models[ev.Generation] != nil {
			c.breaks("a generation begins once, from the committed step", "%+v after step %d in generation %d, epoch %d", *ev, c.step, c.generation, before.Epoch)
			return
		}
		c.generation = ev.Generation
		rings.models[ev.Generation] = newModel(ev.Step, rings.committed)
		c.epochs[ev.Epoch] = rings.committed
		for _, h := range c.tasks {
			h.applied, h.stuck = 0, false
		}
	}
}

// saved returns the records of a committed step.
func (c *check) saved(ev *taskqueue.LedgerEvent) map[sample]int {
	if c.world.plan.cuts {
		return c.cutCommitted(ev)
	}
	m := c.world.rings.models[ev.Generation]
	if m == nil || m.saved[ev.Step] == nil {
		c.breaks("a committed step was saved", "step %d of generation %d", ev.Step, ev.Generation)
		return nil
	}
	return m.saved[ev.Step]
}

// keeps marks the tasks that remain with an ended session.
func (c *check) keeps(o taskqueue.Ordinal) {
	for _, h := range c.tasks {
		for _, a := range h.attempts {
			if a.open && a.trainer == o {
				h.stuck = true
			}
		}
	}
}

// acknowledged checks that an acknowledged commit is stored.
func (c *check) acknowledged(generation, step uint64) {
	if generation == c.generation && step > c.step {
		c.breaks("an answer is stored", "step %d of generation %d is acknowledged, step %d is committed", step, generation, c.step)
	}
}

// committedRecords checks that the committed step contains each record once: all records of counted tasks,
// the records before the base of other tasks, and nothing else.
func (c *check) committedRecords(next *stored) {
	model := c.world.rings.committed
	want := map[sample]int{}
	has := func(p taskPosition, records int64) {
		for n := range records {
			want[sample{p, n}] = 1
		}
	}
	for p, h := range c.tasks {
		if h.finished {
			has(p, recordsOfTask)
		}
	}
	for _, row := range next.live {
		has(taskPosition{row.pass, row.position}, row.base)
	}
	for _, row := range next.since {
		has(taskPosition{row.pass, row.position}, row.base)
	}
	for _, a := range next.aside {
		for _, open := range next.set.Open {
			if a.missing(open.Pass) && open.Pass <= a.pass+1 {
				has(taskPosition{open.Pass, c.world.order(open.Pass, a.index)}, a.bases[open.Pass-a.pass])
			}
		}
	}
	for s, n := range model {
		if !next.open(s.pass) && !c.of(s.taskPosition).finished {
			delete(want, s) // the base of a task set aside in a closed pass is unknown
			if n == 1 {
				continue
			}
		}
		if n != want[s] {
			c.breaks("each record is in one committed step", "pass %d, position %d, record %d: %d times in step %d, counted %d times", s.pass, s.position, s.record, n, c.step, want[s])
			return
		}
	}
	for s := range want {
		if model[s] == 0 && (next.open(s.pass) || c.of(s.taskPosition).finished) {
			c.breaks("each record is in one committed step", "pass %d, position %d, record %d: not in step %d, and counted", s.pass, s.position, s.record, c.step)
			return
		}
	}
}

// since checks that the uncommitted tasks agree with the ledger and are within their limit.
func (c *check) since(next *stored) {
	got, want := map[taskPosition]uint64{}, map[taskPosition]uint64{}
	for _, row := range next.since {
		got[taskPosition{row.pass, row.position}] = row.step
	}
	for p, h := range c.tasks {
		if h.applied != 0 {
			want[p] = h.applied
		}
	}
	if !maps.Equal(got, want) {
		c.breaks("the ledger and the state agree", "uncommitted tasks: %v in the state, %v in the ledger", describePositions(got), describePositions(want))
	}
	if n, limit := len(next.since), c.world.plan.options.MaxUncommitted+c.retried; n > limit {
		c.breaks("uncommitted tasks are limited", "%d tasks, limit %d", n, limit)
	}
}

func describePositions(m map[taskPosition]uint64) []string {
	var list []string
	for p, step := range m {
		list = append(list, fmt.Sprintf("%d/%d in %d", p.pass, p.position, step))
	}
	slices.Sort(list)
	return list
}
