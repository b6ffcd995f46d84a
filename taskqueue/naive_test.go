package taskqueue

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// naive is a reference queue without any concern for speed or size: each task of each open pass is in a slice with
// its full state. The property test compares the real queue with it after every event. It shares newOrder with the
// real queue, which has its own tests, and nothing else.
type naive struct {
	opt           Options
	tasks         int
	shuffle       bool
	seed          uint64
	now           Clock
	average       int64 // µs
	status        Status
	pass          Pass
	open          []naivePass
	skipped       map[int]Pass // task index -> first pass in which it is set aside
	dropped       map[int]bool // task indices, a subset of skipped
	operatorPause bool         // an operator paused the job
	trainers      []naiveTrainer
	ordinal       Ordinal
	saver         Ordinal
	saveEnds      Clock
	counted       map[[2]int]int // (pass, index) -> number of finishes that counted, over all passes
	judged        Token          // token of the last late finish of a plain connection
	fresh         bool           // the connection that asks has no session yet
}

type naivePass struct {
	pass   Pass
	cursor int
	at     []naiveTask // by position
}

type naiveState int

const (
	naiveTodo naiveState = iota
	naivePending
	naiveDone
	naiveAside
)

type naiveTask struct {
	index    int
	state    naiveState
	failures int
	losses   int
	lost     bool
	next     Attempt
	holders  []naiveHolder
}

type naiveHolder struct {
	trainer Ordinal
	attempt Attempt
	request uint64
	start   Clock // 0: prefetched
	soft    Clock
}

type naivePlace struct {
	pass     Pass
	position int
}

type naiveTrainer struct {
	ordinal     Ordinal
	incarnation uint64
	id          string
	plain       bool
	finished    bool
	charged     bool
	draining    bool
	gone        bool
	window      int
	nameless    bool // another trainer has its name: only its tasks are stored
	seen        Clock
	lostAt      Clock
	holds       []naivePlace
	late        []naiveLate
}

// naiveLate is an attempt that timed out, listed under its trainer.
type naiveLate struct {
	token    Token
	index    int
	start    Clock
	observed bool
}

func newNaive(opt Options, tasks int, shuffle bool, seed uint64) *naive {
	n := &naive{opt: opt.withDefaults(), tasks: tasks, shuffle: shuffle, seed: seed, now: 1, ordinal: 1, skipped: map[int]Pass{}, dropped: map[int]bool{}, counted: map[[2]int]int{}}
	n.roll()
	return n
}

func (n *naive) clone() *naive {
	c := *n
	c.open = slices.Clone(n.open)
	for i := range c.open {
		c.open[i].at = slices.Clone(c.open[i].at)
		for k := range c.open[i].at {
			c.open[i].at[k].holders = slices.Clone(c.open[i].at[k].holders)
		}
	}
	c.skipped, c.dropped, c.counted = maps.Clone(n.skipped), maps.Clone(n.dropped), maps.Clone(n.counted)
	c.trainers = slices.Clone(n.trainers)
	for i := range c.trainers {
		c.trainers[i].holds = slices.Clone(c.trainers[i].holds)
		c.trainers[i].late = slices.Clone(c.trainers[i].late)
	}
	return &c
}

// restart drops the state that a new queue does not take over from the previous queue. In the same term the queue
// keeps its connections.
func (n *naive) restart(before *naive) {
	for i := range n.trainers {
		t := &n.trainers[i]
		if t.nameless {
			*t = naiveTrainer{ordinal: t.ordinal, gone: true, nameless: true, id: fmt.Sprintf("#%d", t.ordinal), holds: t.holds}
			continue
		}
		t.seen, t.lostAt, t.late = n.now, 0, nil
		if t.plain {
			t.lostAt = n.now
		}
		if t.gone {
			t.lostAt = 0
		}
	}
	// Dispatches of the same millisecond differ only in their place.
	for i := range n.trainers {
		t := &n.trainers[i]
		start := func(at naivePlace) Clock {
			for _, h := range n.task(at).holders {
				if h.trainer == t.ordinal && h.start != 0 {
					return h.start
				}
			}
			return math.MaxInt64
		}
		request := func(at naivePlace) uint64 {
			for _, h := range n.task(at).holders {
				if h.trainer == t.ordinal {
					return h.request
				}
			}
			return 0
		}
		slices.SortFunc(t.holds, func(a, b naivePlace) int {
			return cmp.Or(cmp.Compare(start(a), start(b)), cmp.Compare(request(a), request(b)), cmp.Compare(a.pass, b.pass), a.position-b.position)
		})
	}
	if before != nil {
		n.now = before.now
		for i := range n.trainers {
			t := &n.trainers[i]
			if t.gone {
				continue
			}
			t.seen, t.lostAt = n.now, n.now.Add(n.opt.Grace)
			if t.plain {
				t.lostAt = n.now
			}
			if was := before.trainer(t.ordinal, t.incarnation); was != nil {
				t.seen, t.lostAt = was.seen, was.lostAt
				for _, l := range was.late {
					at := naivePlace{l.token.Pass, l.token.Position}
					if !slices.Contains(t.holds, at) || !slices.ContainsFunc(n.task(at).holders, func(h naiveHolder) bool {
						return h.trainer == t.ordinal && h.attempt == l.token.Attempt
					}) {
						t.late = append(t.late, l)
					}
				}
			}
		}
	}
	for i := range n.open {
		for k := range n.open[i].at {
			for j := range n.open[i].at[k].holders {
				if h := &n.open[i].at[k].holders[j]; h.start != 0 {
					n.extend(&n.open[i].at[k], h)
				}
			}
		}
	}
}

// roll opens and closes passes, and moves the cursors past the tasks that are set aside.
func (n *naive) roll() {
	for n.status == Running || n.status == Paused {
		for i := range n.open {
			p := &n.open[i]
			for p.cursor < n.tasks && p.at[p.cursor].state == naiveAside {
				p.cursor++
			}
		}
		if len(n.open) > 0 && n.passDone(&n.open[0]) {
			done := 0
			for _, t := range n.open[0].at {
				if t.state == naiveDone {
					done++
				}
			}
			n.open = n.open[1:]
			if done == 0 {
				n.status = Failed
			}
			continue
		}
		last := n.opt.Passes > 0 && int(n.pass) >= n.opt.Passes
		if last && len(n.open) == 0 {
			n.status = Ended
		}
		if last {
			return
		}
		limit := 1
		if n.opt.Rolling {
			limit = 2
		}
		if len(n.open) == limit || len(n.open) > 0 && n.open[len(n.open)-1].cursor < n.tasks {
			return
		}
		n.pass++
		p := naivePass{pass: n.pass}
		algorithm := orderIdentity
		if n.shuffle {
			algorithm = orderFeistel
		}
		o := newOrder(algorithm, n.seed, n.pass, n.tasks)
		for position := range n.tasks {
			t := naiveTask{index: o.index(position), next: 1}
			if n.skipped[t.index] != 0 {
				t.state = naiveAside
			}
			p.at = append(p.at, t)
		}
		n.open = append(n.open, p)
	}
}

func (n *naive) passDone(p *naivePass) bool {
	for _, t := range p.at {
		if t.state != naiveDone && t.state != naiveAside {
			return false
		}
	}
	return true
}

func (n *naive) passOf(p Pass) *naivePass {
	for i := range n.open {
		if n.open[i].pass == p {
			return &n.open[i]
		}
	}
	return nil
}

func (n *naive) task(at naivePlace) *naiveTask { return &n.passOf(at.pass).at[at.position] }

func (n *naive) trainer(o Ordinal, incarnation uint64) *naiveTrainer {
	for i := range n.trainers {
		if t := &n.trainers[i]; t.ordinal == o && t.incarnation == incarnation && !t.gone {
			return t
		}
	}
	return nil
}

func (n *naive) byOrdinal(o Ordinal) *naiveTrainer {
	for i := range n.trainers {
		if n.trainers[i].ordinal == o {
			return &n.trainers[i]
		}
	}
	return nil
}

func (n *naive) timeout() time.Duration {
	if n.average == 0 {
		return n.opt.FirstTimeout
	}
	return min(max(5*time.Duration(n.average)*time.Microsecond, n.opt.TimeoutMin), n.opt.TimeoutMax)
}

// taskTimeout doubles after each failure of the task, up to the maximum.
func (n *naive) taskTimeout(task *naiveTask) time.Duration {
	timeout := n.timeout()
	for range task.failures {
		timeout = max(timeout, min(2*timeout, n.opt.TimeoutMax))
	}
	return timeout
}

func (n *naive) extend(task *naiveTask, h *naiveHolder) {
	timeout := n.taskTimeout(task)
	h.soft = min(n.now.Add(timeout), h.start.Add(10*timeout))
}

func (n *naive) run(task *naiveTask, h *naiveHolder) {
	h.start, h.soft = n.now, n.now.Add(n.taskTimeout(task))
}

func (n *naive) observe(took Clock) {
	micros := max(1000*int64(took), 1)
	if n.average == 0 {
		n.average = micros
	} else {
		n.average = max(n.average+(micros-n.average)/10, 1)
	}
}

func (n *naive) runs(t *naiveTrainer) bool {
	for _, at := range t.holds {
		for _, h := range n.task(at).holders {
			if h.trainer == t.ordinal && h.start != 0 {
				return true
			}
		}
	}
	return false
}

// take removes a holder. It starts the clock of the trainer's prefetched task unless the trainer is being removed.
func (n *naive) take(at naivePlace, o Ordinal, startNext bool) naiveHolder {
	task := n.task(at)
	i := slices.IndexFunc(task.holders, func(h naiveHolder) bool { return h.trainer == o })
	h := task.holders[i]
	// As in the queue, the last of two holders moves to the place of the removed holder. This decides only the order
	// in which holders are listed.
	task.holders[i] = task.holders[len(task.holders)-1]
	task.holders = task.holders[:len(task.holders)-1]
	if len(task.holders) == 0 {
		task.state = naiveTodo
	}
	t := n.byOrdinal(o)
	i = slices.Index(t.holds, at)
	t.holds = slices.Delete(t.holds, i, i+1)
	if startNext && len(t.holds) > 0 && !n.runs(t) {
		next := n.task(t.holds[0])
		for k := range next.holders {
			if next.holders[k].trainer == o {
				n.run(next, &next.holders[k])
			}
		}
	}
	return h
}

func (n *naive) tooOften(task naiveTask) bool {
	return 3*task.failures+task.losses > 3*n.opt.MaxFailures
}

// setAsideIfFailed sets aside a task without a holder that failed too often.
func (n *naive) setAsideIfFailed(at naivePlace) {
	task := n.task(at)
	if task.state == naiveTodo && n.tooOften(*task) {
		task.state = naiveAside
		if since := n.skipped[task.index]; since == 0 || at.pass < since {
			n.skipped[task.index] = at.pass
		}
		for i := range n.open { // passes whose cursor is before the task skip it
			for position := range n.open[i].at {
				t := &n.open[i].at[position]
				if t.index == task.index && n.open[i].pass > at.pass && position >= n.open[i].cursor {
					t.state = naiveAside
				}
			}
		}
		if len(n.skipped) > n.opt.MaxSetAside && n.status == Running {
			n.status, n.operatorPause = Paused, false
		}
	}
	n.roll()
}

// restore returns a task to the open passes, from the given pass on.
func (n *naive) restore(index int, from Pass) {
	delete(n.skipped, index)
	for i := range n.open {
		for position := range n.open[i].at {
			t := &n.open[i].at[position]
			if t.index == index && n.open[i].pass >= from && t.state == naiveAside {
				t.state, t.failures, t.losses, t.lost = naiveTodo, 0, 0, false
			}
		}
	}
}

func (n *naive) judgeToken(tok Token) (naivePlace, FinishStatus) {
	at := naivePlace{tok.Pass, tok.Position}
	if tok.Epoch != 1 || tok.Kind != Training || tok.Dataset != 0 || tok.Pass == 0 || tok.Pass > n.pass || tok.Position < 0 || tok.Position >= n.tasks || tok.Attempt == 0 {
		return at, Stale
	}
	p := n.passOf(tok.Pass)
	if p == nil {
		return at, AlreadyCounted // or set aside in a closed pass: see closedVerdict
	}
	t := &p.at[tok.Position]
	switch {
	case t.state == naiveDone:
		return at, AlreadyCounted
	case tok.Attempt >= t.next, t.state == naiveAside && n.dropped[t.index]:
		return at, Stale
	}
	return at, Counted
}

// closedVerdict reports whether two verdicts agree. For a token of a closed pass both verdicts are right: neither
// changes the state.
func (n *naive) closedVerdict(tok Token, a, b FinishStatus) bool {
	if a == b {
		return true
	}
	closed := tok.Pass < n.pass && n.passOf(tok.Pass) == nil || len(n.open) == 0
	return closed && a != Counted && b != Counted && a != Returned && b != Returned
}

func (n *naive) finish(by *naiveTrainer, tok Token) FinishStatus {
	if by != nil {
		for i := range by.late {
			if l := &by.late[i]; l.token == tok && !l.observed {
				l.observed = true
				n.observe(min(n.now-l.start, Clock(n.opt.TimeoutMax.Milliseconds())))
			}
		}
	}
	at, status := n.judgeToken(tok)
	if status != Counted {
		return status
	}
	task := n.task(at)
	if task.state == naiveAside && n.skipped[task.index] == at.pass {
		n.restore(task.index, at.pass)
		task = n.task(at)
	}
	for _, h := range task.holders {
		if h.attempt == tok.Attempt && h.start != 0 {
			n.observe(n.now - h.start)
		}
	}
	for len(task.holders) > 0 {
		n.take(at, task.holders[0].trainer, true)
	}
	task.state = naiveDone
	n.counted[[2]int{int(at.pass), task.index}]++
	if by != nil {
		by.finished = true
	}
	n.roll()
	n.forgetGone()
	return Counted
}

func (n *naive) fail(by *naiveTrainer, tok Token) FinishStatus {
	at, status := n.judgeToken(tok)
	if status != Counted {
		return status
	}
	task := n.task(at)
	for _, h := range task.holders {
		if h.attempt == tok.Attempt && (by == nil || h.trainer == by.ordinal) {
			task.failures++
			n.take(at, h.trainer, true)
			n.setAsideIfFailed(at)
			n.forgetGone()
			return Returned
		}
	}
	return Stale
}

// forgetGone removes trainers whose session ended and that hold no task.
func (n *naive) forgetGone() {
	n.trainers = slices.DeleteFunc(n.trainers, func(t naiveTrainer) bool { return t.gone && len(t.holds) == 0 })
}

func (n *naive) token(at naivePlace, attempt Attempt) Token {
	return Token{Epoch: 1, Pass: at.pass, Position: at.position, Attempt: attempt}
}
