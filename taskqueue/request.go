package taskqueue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Result is a finished task, or with Error a failed one. With explicit commits a finish
// carries the step, from 1, that applied the last record of the task.
type Result struct {
	Token     Token
	Error     string
	Step      uint64
	Metrics   []byte   // of an evaluation task: see Options.Merge
	Model     Model    // of a training task
	NotFinite string   // of a failed evaluation task: the name of a metric that is NaN or infinite
	Stats     RunStats // of a training task

	// Kept is the reason why the trainer has kept its model in a training task, instead of Answer.From. It is empty otherwise.
	Kept string
}

// Request is what a joined trainer sends: what it finished, and whether it wants a
// task. Repeating a request repeats all of it and changes nothing more: finishes are
// already counted, and a task that was dispatched for this sequence number is given again.
type Request struct {
	Trainer     Ordinal
	Incarnation uint64
	Seq         uint64 // of this request
	Ack         uint64 // all requests below it are answered
	Held        []Token
	Finished    []Result
	Want        bool
	Most        int // tasks wanted, with Want; 0: one
	Accepts     Kinds
	SeenCommit  uint64 // highest commit number that the trainer saw in a reply
	SeenProof   []byte // that came with it
	JobID       [16]byte
	Progress    Progress
	Epoch       uint32 // that the trainer goes by; of explicit commits only
}

func (ev *Request) apply(q *Queue) Answer {
	if err := errors.Join(q.checkSteps(ev.Finished), q.checkMetrics(ev.Finished...)); err != nil {
		return Answer{Err: err}
	}
	t := q.trainers[ev.Trainer]
	known := t != nil && t.incarnation == ev.Incarnation && !t.gone
	if known {
		q.observe(t)
		t.progress = ev.Progress
		//guard:request-is-a-sign-of-life
		delete(q.hung, t.id)
	}
	a := Answer{}
	if len(ev.Finished) > 0 {
		a.Finishes = make([]FinishStatus, len(ev.Finished))
		for i, r := range ev.Finished {
			var by *trainer
			if known {
				by = t
			}
			if r.Error == "" {
				a.Finishes[i] = q.finish(by, &r)
			} else {
				q.noteNotFinite(r.Token, r.NotFinite)
				a.Finishes[i] = q.fail(by, r.Token, r.Error)
			}
		}
		//guard:rule-holds-before-the-next-task
		q.steer(nil)
	}
	if !known || t.gone { // the task that it failed may have ended its session
		a.Kind = AnswerRejoin
		return a
	}
	//guard:request-of-this-epoch
	if q.explicit != nil && ev.Epoch != q.epoch {
		a.Kind, a.Place = AnswerRolledBack, q.stepPlace()
		return a
	}
	q.dropLostReplies(t, ev)
	if ev.Want {
		q.ask(t, ev.Seq, ev.Accepts, &a)
		q.askMore(t, ev, &a)
	}
	return a
}

// askMore adds training tasks to an answer with a training task, up to the number that a trainer with a window wants. A repeated request gets the
// tasks that it got before.
func (q *Queue) askMore(t *trainer, ev *Request, a *Answer) {
	if t.window <= MinWindow || a.Kind != AnswerTask || a.Token.Kind != Training {
		return
	}
	for _, e := range t.holds {
		//guard:repeated-request-has-all-tasks
		if h := e.holderOf(t); h.request == ev.Seq && q.token(e, h.attempt) != a.Token {
			a.More = append(a.More, Answer{})
			q.answerTask(e, h.attempt, &a.More[len(a.More)-1])
		}
	}
	if a.repeated || q.opt.Ranks > 0 {
		return
	}
	chunks, most := q.sets[a.Set].chunksPerTask, 0
	for _, s := range q.sets { // the next task can be of each of them
		if s.kind == Training {
			most = max(most, s.chunksPerTask)
		}
	}
	for n := 1; n < min(ev.Most, MaxAnswered); n++ {
		//guard:window-holds-its-size
		if q.heldByRequest(t) >= t.window || q.status != Running || q.waitsFor() != WaitTask {
			return
		}
		var more Answer
		//guard:answer-fits-a-message
		if chunks+most > maxAnsweredChunks || !q.dispatchNext(t, ev.Seq, KindsOf(Training), &more) {
			return
		}
		chunks += q.sets[more.Set].chunksPerTask
		a.More = append(a.More, more)
	}
}

// dropLostReplies returns what was dispatched to a trainer that does not list it and
// will not ask for it again: the reply was lost.
func (q *Queue) dropLostReplies(t *trainer, ev *Request) {
	for i := len(t.holds) - 1; i >= 0; i-- {
		e := t.holds[i]
		//guard:returned-attempt-copied
		h := *e.holderOf(t)
		//guard:unheld-task-returned
		if h.request < ev.Ack && !q.called(e, t) && !slices.Contains(ev.Held, q.token(e, h.attempt)) {
			q.release(e, t)
			q.ledger.returned(e, t.ordinal, h.attempt)
			q.retryOrSetAside(e)
		}
	}
}

// ask answers a trainer that wants a task.
func (q *Queue) ask(t *trainer, seq uint64, accepts Kinds, a *Answer) {
	t.accepts = accepts
	for _, e := range t.holds {
		//guard:repeated-request
		if h := e.holderOf(t); h.request == seq && !t.plain {
			q.answerTask(e, h.attempt, a)
			a.repeated = true
			return
		}
	}
	switch q.status {
	case Ended:
		a.Kind, a.Reason, a.SetAside = AnswerEnded, q.reason, q.countAside()
		return
	case Failed:
		a.Kind = AnswerFailed
		return
	}
	a.Kind = AnswerWait
	if t.draining && len(t.holds) == 0 {
		a.Kind = AnswerDrained
		return
	}
	//guard:drained-trainer-is-told
	if t.draining && q.explicit == nil && t.window > 0 {
		a.WaitFor = WaitDrain
	}
	if q.status == Paused || q.hold || t.draining {
		return
	}
	held := q.heldByRequest(t)
	if q.opt.Ranks > 0 && held > 0 {
		return
	}
	limit := max(t.window, maxHeldJoined)
	if t.plain {
		limit = maxHeldPlain
	}
	if held >= limit {
		a.Err = fmt.Errorf("%w: %d are held, finish one first", ErrTooManyHeld, held)
		return
	}
	if q.toFlush(t) {
		a.WaitFor = WaitCut
		return
	}
	if t.incarnation == 0 {
		if a.Err = q.roomForSession(); a.Err != nil {
			return
		}
	}
	if why := q.waitsFor(); why != WaitTask {
		if !q.opt.Cuts { // else the leader does this
			a.WaitFor = why
		}
		return
	}
	//guard:ranks-present-before-dispatch
	if q.ranksAbsent() {
		return
	}
	if !q.dispatchNext(t, seq, accepts, a) {
		q.warnUnaccepted()
	}
}

// dispatchNext dispatches the next task of the datasets of the accepted kinds. It returns false if there is none.
func (q *Queue) dispatchNext(t *trainer, seq uint64, accepts Kinds, a *Answer) bool {
	var tried [MaxSets]bool
	if set, yes := q.passesBy(t, accepts); yes {
		tried[set] = true
	}
	for s := q.nextSet(accepts, &tried); s != nil; s = q.nextSet(accepts, &tried) {
		if e := q.pick(s, t); e != nil {
			q.pay(s, &tried)
			q.dispatch(e, t, seq, a)
			return true
		}
		tried[s.id] = true
	}
	return false
}

// warnUnaccepted warns once for each kind of which there are tasks, and that no trainer accepted in its last request.
func (q *Queue) warnUnaccepted() {
	for _, kind := range [...]Kind{Evaluation, Training, Prediction} {
		if q.warned&KindsOf(kind) != 0 || kind == Prediction && !q.trained() ||
			!slices.ContainsFunc(q.sets, func(s *set) bool { return s.kind == kind && q.hasTask(s) }) {
			continue
		}
		accepted := false
		for _, t := range q.trainers {
			accepted = accepted || !t.gone && t.accepts.has(kind)
		}
		if !accepted {
			q.warned |= KindsOf(kind)
			q.warn("the job waits for a trainer that accepts tasks of this kind", map[string]any{"kind": kind.String(), "start": starts[kind]})
		}
	}
}

// starts has what an operator can start for the tasks of each kind.
var starts = map[Kind]string{
	Training:   "a trainer without --predict-model",
	Evaluation: "master trainer, or a trainer whose requests accept evaluation tasks",
	Prediction: "master trainer with --predict-out, or a trainer whose requests accept prediction tasks",
}

// pick chooses a task to dispatch: the retry with the lowest (pass, position), else the next position, else, with speculation,
// a second copy of the slowest task. A retry on which a trainer was lost goes to a trainer without a finished task only as a
// last resort.
func (q *Queue) pick(s *set, t *trainer) *entry {
	if q.opt.Ranks > 0 && s.kind == Training {
		return q.pickRanked(s, t)
	}
	var lastResort *entry
	for i, seen := s.first, 0; seen < s.retry; i++ {
		e := s.live[i]
		if e.gone || e.holderCount > 0 {
			continue
		}
		if seen == 0 {
			s.first = i
		}
		seen++
		if q.countsWithStep(s) && q.exhausted(e) {
			continue // the next tick sets it aside
		}
		//guard:retry-dispatched
		if !e.lost || t.finished {
			return e
		}
		if lastResort == nil {
			lastResort = e
		}
	}
	s.skipAside()
	if len(s.open) > 0 && s.cursor < s.tasks && q.roomToDispatch(s) {
		position := s.cursor
		s.cursor++
		e := s.add(s.pass, position)
		q.advance(s)
		return e
	}
	if lastResort == nil && q.opt.Speculate && q.explicit == nil {
		return q.slowest(s, t)
	}
	return lastResort
}

// slowest returns the running task that began first and has one holder, not t. A task that failed too often gets no second
// copy: it is set aside when its holder gives it back, and copies of copies would delay that without limit.
func (q *Queue) slowest(s *set, t *trainer) *entry {
	var slowest *entry
	for _, e := range s.live {
		//guard:no-copy-of-exhausted-task
		if e.gone || e.holderCount != 1 || e.holders[0].start == 0 || e.holders[0].trainer == t || q.exhausted(e) {
			continue
		}
		if slowest == nil || e.holders[0].start < slowest.holders[0].start {
			slowest = e
		}
	}
	return slowest
}

func (q *Queue) dispatch(e *entry, t *trainer, seq uint64, a *Answer) {
	if t.incarnation == 0 {
		q.enlist(t)
	}
	attempt := e.next
	e.next++
	if e.holderCount == 0 {
		e.set.retry--
	}
	h := &e.holders[e.holderCount]
	e.holderCount++
	*h = holder{trainer: t, attempt: attempt, request: seq}
	if t.plain || !t.running() || seq == offered {
		q.start(e, h)
	}
	t.holds = append(t.holds, e)
	q.dirty = true
	q.ledger.dispatched(e, t.ordinal, attempt)
	q.stopFormer(e)
	q.bindModel(t, q.token(e, attempt))
	q.answerTask(e, attempt, a)
}

func (q *Queue) answerTask(e *entry, attempt Attempt, a *Answer) {
	//guard:dispatch-with-base
	a.Kind, a.Set, a.Base = AnswerTask, e.set.id, e.base
	a.Token = q.token(e, attempt)
	a.Index = e.set.orderOf(e.pass).index(e.position)
	//guard:task-of-the-pinned-model
	if r := q.round; e.set.kind == Evaluation && r.Set == e.set.id && r.Pass == e.pass {
		r.Metrics = nil
		a.Round = &r
	}
	if q.steering != nil && e.set.kind == Training {
		a.HyperParameters = q.steering.ForTrainers()
		q.answerMember(e, attempt, a)
	}
}

func (q *Queue) token(e *entry, attempt Attempt) Token {
	return Token{Epoch: q.epoch, Kind: e.set.kind, Dataset: e.set.id, Pass: e.pass, Position: e.position, Attempt: attempt}
}

// start lets the clock of a holder run.
func (q *Queue) start(e *entry, h *holder) {
	h.start = q.clock
	h.soft, h.asked = h.start.Add(q.timeoutOf(e)), false
}

// running reports whether the clock of any task of t runs.
func (t *trainer) running() bool {
	for _, e := range t.holds {
		if e.holderOf(t).start != 0 {
			return true
		}
	}
	return false
}

// trains reports whether the clock of a training task of t runs.
func (t *trainer) trains() bool {
	for _, e := range t.holds {
		if e.set.kind == Training && e.holderOf(t).start != 0 {
			return true
		}
	}
	return false
}

// holdsTraining reports whether t holds a training task.
func (t *trainer) holdsTraining() bool {
	return slices.ContainsFunc(t.holds, func(e *entry) bool { return e.set.kind == Training })
}

func (e *entry) holderOf(t *trainer) *holder {
	for i := range e.holderCount {
		if e.holders[i].trainer == t {
			return &e.holders[i]
		}
	}
	panic("taskqueue: a trainer lists a task that does not list it")
}

// locate returns where a token points: its set and, when live, its entry. Any set of
// numbers may come from a client.
func (q *Queue) locate(tok Token) (s *set, e *entry, status FinishStatus) {
	//guard:finish-of-this-epoch
	if tok.Epoch != q.epoch || tok.Dataset < 0 || tok.Dataset >= len(q.sets) {
		return nil, nil, Stale
	}
	s = q.sets[tok.Dataset]
	//guard:token-range
	if tok.Kind != s.kind || tok.Position < 0 || tok.Position >= s.tasks || tok.Pass == 0 || tok.Pass > s.pass || tok.Attempt == 0 {
		return nil, nil, Stale
	}
	//guard:finish-of-its-pass
	if e = s.byKey[liveKey{tok.Pass, tok.Position}]; e != nil {
		//guard:finish-of-known-attempt
		if tok.Attempt >= e.next {
			return nil, nil, Stale
		}
		return s, e, Counted
	}
	//guard:finish-of-dispatched-task
	if tok.Position >= s.dispatched(tok.Pass) {
		return nil, nil, Stale
	}
	if len(s.aside) > 0 {
		o := newOrder(s.algorithm, s.seed, tok.Pass, s.tasks)
		if a := s.aside[o.index(tok.Position)]; a.missing(tok.Pass) {
			//guard:late-finish-of-set-aside-task
			if a.dropped || s.openPass(tok.Pass) == nil || tok.Attempt >= a.nextAttempt(tok.Pass) {
				return nil, nil, Stale
			}
			return s, nil, Counted
		}
	}
	//guard:finish-counts-once
	return s, nil, AlreadyCounted
}

// finish counts a task once, or with explicit commits keeps it for the commit of its step. by is the reporting trainer, nil if
// it is unknown.
func (q *Queue) finish(by *trainer, r *Result) FinishStatus {
	tok, step := r.Token, r.Step
	//guard:late-finish-averaged
	q.observeLate(by, tok)
	s, e, status := q.locate(tok)
	if status != Counted {
		return status
	}
	if q.countsWithStep(s) && e == nil {
		return Stale // set aside by an earlier rollback
	}
	mark, had := int64(0), Ordinal(0)
	if e == nil { // late, for a task that was set aside in an open pass
		q.finishAside(s, s.aside[s.orderOf(tok.Pass).index(tok.Position)], tok.Pass)
	} else { //guard:finish-removes-all-copies
		//guard:late-finish-counts
		for i := range e.holderCount {
			h := &e.holders[i]
			mark, had = h.mark, h.trainer.ordinal
			if h.attempt == tok.Attempt && h.start != 0 {
				s.observe(q.clock - h.start)
			}
		}
		for e.holderCount > 0 {
			q.release(e, e.holders[0].trainer)
		}
		s.remove(e)
		q.stopFormer(e)
	}
	if !q.countsWithStep(s) {
		step = 0
		s.openPass(tok.Pass).count(tok.Position)
	} else {
		step = max(step, q.explicit.committed+1)
		//guard:finish-keeps-flush-mark
		s.addUncommitted(uncommittedTask{liveKey{tok.Pass, tok.Position}, step, e.base, mark, e.next, had})
	}
	if by != nil && !by.finished {
		by.finished = true
		q.saveTrainer(by)
	}
	q.dirty = true
	//guard:counted-metrics-merged
	q.keepOutcome(s.kind, r)
	//guard:counted-statistics-once
	q.countStats(s, tok, r.Stats)
	q.finishInPopulation(by, s.kind, r)
	q.ledger.finished(s.id, tok, by, step)
	q.advance(s)
	if s.id == q.round.Set {
		q.continueOwnRound()
	}
	return Counted
}

// count counts a position.
func (p *openPass) count(position int) {
	x := uint64(position)
	p.counted++
	p.sum1 += x
	//guard:duration-sums
	p.sum2 += x * x
}

// observe takes a completion time into the moving average.
func (s *set) observe(ms Clock) {
	micros := max(int64(ms)*1000, 1)
	if s.average == 0 {
		s.average = micros
		return
	}
	s.average = max(s.average+(micros-s.average)/averageWeight, 1)
}

// observeLate takes the completion time of an attempt that timed out into the moving average, also
// if the task is counted already: else a timeout that is too short would never grow. One hung
// trainer must not make it grow without limit, so no more than TimeoutMax is taken.
func (q *Queue) observeLate(by *trainer, tok Token) {
	if by == nil {
		return
	}
	for i := range by.late {
		if l := &by.late[i]; l.token == tok && !l.observed {
			l.observed = true
			q.sets[tok.Dataset].observe(min(q.clock-l.start, Clock(q.opt.TimeoutMax/time.Millisecond)))
			q.dirty = true
		}
	}
}

// fail takes a task back that its trainer could not train.
func (q *Queue) fail(by *trainer, tok Token, text string) FinishStatus {
	s, e, status := q.locate(tok)
	if status != Counted {
		return status
	}
	if e == nil { // set aside already
		return Stale
	}
	for i := range e.holderCount {
		h := e.holders[i]
		if h.attempt != tok.Attempt || by != nil && h.trainer != by {
			continue
		}
		if q.countsWithStep(s) && h.trainer.gone {
			return Stale // the end of its session was charged
		}
		//guard:failure-charged
		e.failures++
		e.lastError, e.lastHolder = clip(text), h.trainer.id
		if q.countsWithStep(s) {
			q.ledger.failed(e, h.trainer.ordinal, tok.Attempt)
			q.lose(h.trainer, false)
			return Returned
		}
		q.release(e, h.trainer)
		q.ledger.failed(e, h.trainer.ordinal, tok.Attempt)
		if q.ofOwnRound(e) {
			q.endOwnRound("task failed: " + e.lastError)
			return Returned
		}
		q.retryOrSetAside(e)
		return Returned
	}
	return Stale // it was taken back before
}

func clip(text string) string {
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") // not half a character
	}
	return text
}

// release removes one holder and starts the clock of the task that t had prefetched.
func (q *Queue) release(e *entry, t *trainer) {
	q.detach(e, t)
	if t.running() {
		return
	}
	//guard:prefetched-task-starts
	if len(t.holds) > 0 {
		next := t.holds[0]
		q.start(next, next.holderOf(t))
	}
}

// detach removes one holder.
func (q *Queue) detach(e *entry, t *trainer) {
	at := slices.IndexFunc(e.holders[:e.holderCount], func(h holder) bool { return h.trainer == t })
	e.holderCount--
	e.holders[at] = e.holders[e.holderCount]
	e.holders[e.holderCount] = holder{}
	if e.holderCount == 0 {
		e.set.retry++
		e.set.first = min(e.set.first, e.slot)
	}
	at = slices.Index(t.holds, e)
	t.holds = slices.Delete(t.holds, at, at+1)
	q.dirty = true
	switch {
	case !t.gone || len(t.holds) > 0:
	case q.explicit == nil:
		q.forget(t)
	case t.keeps: // a tick forgets it: many may lose all in one event
		t.keeps = false
		q.explicit.lost--
	}
}

// retryOrSetAside puts back a task that a holder gave back, or sets it aside after too many failures, if it has no other holder.
func (q *Queue) retryOrSetAside(e *entry) {
	if e.holderCount == 0 && q.exhausted(e) {
		q.setAside(e)
	}
}

// exhausted reports whether a task failed too often in its pass.
func (q *Queue) exhausted(e *entry) bool {
	//guard:failure-limit
	return lossWeight*e.failures+e.losses > lossWeight*q.opt.MaxFailures
}
