package taskqueue

import (
	"cmp"
	"slices"
)

// This file has the events of the naive queue.

func (n *naive) request(ev *Request) Answer {
	a := Answer{}
	for _, r := range ev.Finished {
		t := n.trainer(ev.Trainer, ev.Incarnation)
		if r.Error == "" {
			a.Finishes = append(a.Finishes, n.finish(t, r.Token))
		} else {
			a.Finishes = append(a.Finishes, n.fail(t, r.Token))
		}
	}
	t := n.trainer(ev.Trainer, ev.Incarnation)
	if t == nil {
		a.Kind = AnswerRejoin
		return a
	}
	t.seen, t.lostAt = n.now, 0
	for _, at := range slices.Backward(slices.Clone(t.holds)) {
		for _, h := range n.task(at).holders {
			if h.trainer == t.ordinal && h.request < ev.Ack && !slices.Contains(ev.Held, n.token(at, h.attempt)) {
				n.take(at, t.ordinal, true)
				n.setAsideIfFailed(at)
				break
			}
		}
	}
	if ev.Want {
		n.askAll(t, ev, &a)
	}
	return a
}

// askAll answers with the tasks of an earlier copy of the request or, with a window, with as many as it wants.
func (n *naive) askAll(t *naiveTrainer, ev *Request, a *Answer) {
	var earlier []Answer
	for _, at := range t.holds {
		for _, h := range n.task(at).holders {
			if h.trainer == t.ordinal && h.request == ev.Seq && !t.plain {
				earlier = append(earlier, Answer{Kind: AnswerTask, Token: n.token(at, h.attempt), Index: n.task(at).index})
			}
		}
	}
	if len(earlier) > 0 {
		a.Kind, a.Token, a.Index, a.More = AnswerTask, earlier[0].Token, earlier[0].Index, append([]Answer(nil), earlier[1:]...)
		return
	}
	n.ask(t, ev.Seq, a)
	for i := 1; i < ev.Most && i < 16 && t.window > 2 && a.Kind == AnswerTask && len(t.holds) < t.window && n.status == Running; i++ {
		more := Answer{}
		if n.ask(t, ev.Seq+1<<32, &more); more.Kind != AnswerTask {
			return
		}
		n.renumber(t, ev.Seq)
		a.More = append(a.More, more)
	}
}

// renumber gives the newest task of a trainer the number of the request that it answers.
func (n *naive) renumber(t *naiveTrainer, seq uint64) {
	task := n.task(t.holds[len(t.holds)-1])
	for i := range task.holders {
		if task.holders[i].trainer == t.ordinal {
			task.holders[i].request = seq
		}
	}
}

func (n *naive) ask(t *naiveTrainer, seq uint64, a *Answer) {
	for _, at := range t.holds {
		for _, h := range n.task(at).holders {
			if h.trainer == t.ordinal && h.request == seq && !t.plain {
				a.Kind, a.Token, a.Index = AnswerTask, n.token(at, h.attempt), n.task(at).index
				return
			}
		}
	}
	a.Kind = AnswerWait
	switch n.status {
	case Ended:
		a.Kind, a.SetAside = AnswerEnded, len(n.skipped)
		return
	case Failed:
		a.Kind = AnswerFailed
		return
	}
	if t.draining && len(t.holds) == 0 {
		a.Kind = AnswerDrained
		return
	}
	if t.draining && t.window > 0 {
		a.WaitFor = WaitDrain
	}
	if t.draining || n.status == Paused {
		return
	}
	if !t.plain && len(t.holds) >= max(t.window, 2) || t.plain && len(t.holds) >= 16 {
		a.Err = ErrTooManyHeld
		return
	}
	if n.fresh && len(n.trainers) > n.opt.MaxSessions {
		a.Err = ErrTooManySessions
		return
	}
	at, ok := n.choose(t)
	if !ok {
		return
	}
	task := n.task(at)
	task.state = naivePending
	h := naiveHolder{trainer: t.ordinal, attempt: task.next, request: seq}
	if t.plain || !n.runs(t) {
		n.run(task, &h)
	}
	task.next++
	task.holders = append(task.holders, h)
	t.holds = append(t.holds, at)
	if p := n.passOf(at.pass); at.position >= p.cursor {
		p.cursor = at.position + 1
	}
	a.Kind, a.Token, a.Index = AnswerTask, n.token(at, h.attempt), task.index
	n.roll()
}

func (n *naive) choose(t *naiveTrainer) (naivePlace, bool) {
	var lastResort *naivePlace
	for i := range n.open {
		p := &n.open[i]
		for position := range p.at {
			if p.at[position].state != naiveTodo {
				continue
			}
			at := naivePlace{p.pass, position}
			if p.at[position].lost && !t.finished {
				if lastResort == nil {
					lastResort = &at
				}
				continue
			}
			return at, true
		}
	}
	if lastResort != nil {
		return *lastResort, true
	}
	if !n.opt.Speculate {
		return naivePlace{}, false
	}
	var slowest naivePlace
	var start Clock
	for i := range n.open {
		for position, task := range n.open[i].at {
			if len(task.holders) != 1 || task.holders[0].start == 0 || task.holders[0].trainer == t.ordinal || n.tooOften(task) {
				continue
			}
			if start == 0 || task.holders[0].start < start {
				slowest, start = naivePlace{n.open[i].pass, position}, task.holders[0].start
			}
		}
	}
	return slowest, start != 0
}

func (n *naive) lose(t *naiveTrainer, charge bool) {
	if n.opt.LossesIgnored {
		t.gone = true
		return
	}
	n.end(t, charge)
}

// end returns all tasks of a trainer, the last dispatch first.
func (n *naive) end(t *naiveTrainer, charge bool) {
	t.gone = true
	for len(t.holds) > 0 {
		at := t.holds[len(t.holds)-1]
		h := n.take(at, t.ordinal, false)
		task := n.task(at)
		if charge && h.start != 0 {
			if !t.charged && (t.finished || task.lost) {
				task.losses++
				t.charged = true
			}
			task.lost = true
		}
		n.setAsideIfFailed(at)
	}
}

// enlist begins a session with the ordinal that the queue must assign next.
func (n *naive) enlist(id string, incarnation uint64, plain bool) *naiveTrainer {
	n.trainers = append(n.trainers, naiveTrainer{ordinal: n.ordinal, incarnation: incarnation, id: id, plain: plain, seen: n.now})
	n.ordinal++
	return &n.trainers[len(n.trainers)-1]
}

// reuse ends the earlier sessions with the name of a new trainer.
func (n *naive) reuse(t *naiveTrainer) {
	for i := range n.trainers {
		if o := &n.trainers[i]; o.id == t.id && o.ordinal != t.ordinal {
			o.nameless = true
		}
	}
}

// dropName ends the session with a name that is used again.
func (n *naive) dropName(id string) {
	for i := len(n.trainers) - 1; i >= 0; i-- {
		if t := &n.trainers[i]; t.id == id && !t.gone {
			n.lose(t, !t.plain || t.lostAt == 0)
			break
		}
	}
	n.forgetGone()
}

func (n *naive) join(id string, window int, incarnation uint64) Answer {
	again := slices.ContainsFunc(n.trainers, func(t naiveTrainer) bool { return t.id == id && !t.gone })
	if !again && len(n.trainers) >= n.opt.MaxSessions {
		return Answer{Err: ErrTooManySessions}
	}
	n.dropName(id)
	t := n.enlist(id, incarnation, false)
	t.window = min(window, 64)
	n.reuse(t)
	return Answer{Ordinal: t.ordinal, Incarnation: incarnation, Epoch: 1, Window: min(max(window, 2), 64)}
}

func (n *naive) plainAsk(ev *PlainAsk, incarnation uint64) Answer {
	a := Answer{Ordinal: ev.Trainer, Incarnation: ev.Incarnation}
	t := n.trainer(ev.Trainer, ev.Incarnation)
	if t != nil && ev.Finished {
		a.Finishes = []FinishStatus{n.plainFinish(t, ev)}
	}
	if !ev.Want {
		return a
	}
	if t = n.trainer(ev.Trainer, ev.Incarnation); t != nil {
		n.ask(t, 0, &a)
		return a
	}
	n.dropName(ev.Connection)
	a.Ordinal, a.Incarnation = 0, 0
	t = n.enlist(ev.Connection, incarnation, true)
	n.fresh = true
	n.ask(t, 0, &a)
	n.fresh = false
	if a.Kind != AnswerTask {
		n.trainers = n.trainers[:len(n.trainers)-1]
		n.ordinal--
		return a
	}
	n.reuse(t)
	a.Ordinal, a.Incarnation = t.ordinal, t.incarnation
	return a
}

func (n *naive) plainFinish(t *naiveTrainer, ev *PlainAsk) FinishStatus {
	for _, at := range t.holds {
		for _, h := range n.task(at).holders {
			tok := n.token(at, h.attempt)
			if h.trainer != t.ordinal || n.task(at).index != ev.Index || !ev.Token.IsZero() && ev.Token != tok {
				continue
			}
			if ev.Error != "" {
				return n.fail(t, tok)
			}
			return n.finish(t, tok)
		}
	}
	for i := len(t.late) - 1; i >= 0 && ev.Error == ""; i-- {
		if l := t.late[i]; l.index == ev.Index && (ev.Token.IsZero() || ev.Token == l.token) {
			n.judged = l.token
			return n.finish(t, l.token)
		}
	}
	return Stale
}

func (n *naive) heartbeat(ev *Heartbeat) Answer {
	t := n.trainer(ev.Trainer, ev.Incarnation)
	if t == nil {
		return Answer{Kind: AnswerRejoin}
	}
	t.seen, t.lostAt = n.now, 0
	for _, tok := range ev.Moving {
		at, status := n.judgeToken(tok)
		if status != Counted {
			continue
		}
		for i := range n.task(at).holders {
			if h := &n.task(at).holders[i]; h.trainer == t.ordinal && h.attempt == tok.Attempt && h.start != 0 {
				n.extend(n.task(at), h)
			}
		}
	}
	if n.status == Failed {
		return Answer{Kind: AnswerFailed}
	}
	return Answer{Draining: t.draining}
}

func (n *naive) undelivered(ev *Undelivered) {
	t := n.trainer(ev.Trainer, ev.Incarnation)
	at, status := n.judgeToken(ev.Token)
	if t == nil || status != Counted {
		return
	}
	for _, h := range n.task(at).holders {
		if h.trainer == t.ordinal && h.attempt == ev.Token.Attempt {
			n.take(at, t.ordinal, true)
			n.setAsideIfFailed(at)
			return
		}
	}
}

func (n *naive) saveModel(ev *SaveModel) Answer {
	t := n.trainer(ev.Trainer, ev.Incarnation)
	if t == nil {
		return Answer{Kind: AnswerRejoin}
	}
	if saver := n.byOrdinal(n.saver); saver != nil && !saver.gone && saver != t && n.now < n.saveEnds {
		return Answer{}
	}
	n.saver, n.saveEnds = t.ordinal, n.now+ev.Lease
	return Answer{Granted: true}
}

func (n *naive) tick() {
	slices.SortFunc(n.trainers, func(a, b naiveTrainer) int { return cmp.Compare(a.ordinal, b.ordinal) })
	for i := range n.trainers {
		t := &n.trainers[i]
		silent := !t.plain && n.now > t.seen.Add(n.opt.SessionTTL)
		if !t.gone && (silent || t.lostAt != 0 && n.now >= t.lostAt) {
			n.lose(t, !t.plain)
		}
	}
	n.forgetGone()
	var late []naivePlace
	for i := range n.open {
		for position, task := range n.open[i].at {
			if len(task.holders) > 0 {
				late = append(late, naivePlace{n.open[i].pass, position})
			}
		}
	}
	for _, at := range late {
		for k := 0; ; {
			p := n.passOf(at.pass) // it may have been closed
			if p == nil || k >= len(p.at[at.position].holders) {
				break
			}
			task := &p.at[at.position]
			h := task.holders[k]
			if h.start == 0 || n.now < h.soft {
				k++
				continue
			}
			task.failures++
			holder := n.byOrdinal(h.trainer)
			holder.late = append(holder.late, naiveLate{n.token(at, h.attempt), task.index, h.start, false})
			holder.late = holder.late[max(0, len(holder.late)-16):]
			n.take(at, h.trainer, true)
			n.setAsideIfFailed(at)
			if holder.gone { // losses are ignored
				n.end(holder, false)
			}
		}
	}
	n.forgetGone()
}

func (n *naive) retryAside(ev *RetryAside) bool {
	if n.status == Ended || n.status == Failed || n.skipped[ev.Index] == 0 || n.dropped[ev.Index] {
		return false
	}
	n.restore(ev.Index, 0)
	if n.status == Paused && !n.operatorPause && len(n.skipped) <= n.opt.MaxSetAside {
		n.status = Running
	}
	n.roll()
	return true
}

func (n *naive) drop(ev *DropTask) bool {
	if n.status == Ended || n.status == Failed || n.skipped[ev.Index] == 0 {
		return false
	}
	n.dropped[ev.Index] = true
	return true
}

func (n *naive) pause(resume bool) bool {
	if n.status == Ended || n.status == Failed {
		return false
	}
	n.status, n.operatorPause = Paused, true
	if resume {
		n.status = Running
	}
	return true
}

func (n *naive) drain(ev *Drain) bool {
	for i := range n.trainers {
		t := &n.trainers[i]
		if t.id != ev.ID || t.gone {
			continue
		}
		t.draining = true
		if t.window > 0 {
			return true
		}
		for _, at := range slices.Backward(slices.Clone(t.holds)) {
			for _, h := range n.task(at).holders {
				if h.trainer == t.ordinal && h.start == 0 {
					n.take(at, t.ordinal, true)
					n.setAsideIfFailed(at)
					break
				}
			}
		}
		return true
	}
	return false
}

func (n *naive) leave(ev *Leave) {
	if t := n.trainer(ev.Trainer, ev.Incarnation); t != nil {
		n.end(t, false)
	}
	n.forgetGone()
}

func (n *naive) died(ev *Died) {
	if t := n.trainer(ev.Trainer, ev.Incarnation); t != nil {
		n.lose(t, true)
	}
	n.forgetGone()
}

func (n *naive) goneTrainer(ev *Gone) {
	for i := len(n.trainers) - 1; i >= 0; i-- {
		if t := &n.trainers[i]; t.id == ev.ID && !t.gone {
			if !t.plain {
				n.lose(t, ev.Charge)
			}
			break
		}
	}
	n.forgetGone()
}

func (n *naive) disconnected(ev *Disconnected) {
	t := n.trainer(ev.Trainer, ev.Incarnation)
	switch {
	case t == nil:
	case t.plain:
		n.lose(t, t.lostAt == 0)
	case t.lostAt == 0:
		t.lostAt = n.now.Add(n.opt.Grace)
	}
	n.forgetGone()
}

// view returns the literal queues of the oldest open pass.
func (n *naive) view() TaskQueues {
	v := TaskQueues{Pending: map[int]TaskEntry{}}
	if len(n.open) == 0 {
		return v
	}
	p := n.open[0]
	for position, t := range p.at {
		task := Task{Index: t.index, Token: n.token(naivePlace{p.pass, position}, t.next-1)}
		switch t.state {
		case naiveTodo:
			v.Todo = append(v.Todo, TaskEntry{t.failures, task})
		case naivePending:
			v.Pending[t.index] = TaskEntry{t.failures, task}
		case naiveDone:
			task.Token.Attempt = 0
			v.Done = append(v.Done, TaskEntry{Task: task})
		}
	}
	return v
}
