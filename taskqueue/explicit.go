package taskqueue

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Explicit commits: the trainers save the model at steps that they choose, and a task counts once a saved step has all of it.
// A finish names the step that applied its last record. It is uncommitted until that step is committed. A rollback undoes
// everything after the last committed step, since the model rolls back too.
//
//	          finish(step n)             commit(s), s >= n
//	pending ─────────────────▶ uncommitted ─────────────────▶ done
//	   ▲ │                          │
//	   │ └── rollback: base ◀───────┘ rollback(s), s < n
//	   │            │
//	   └─── ask ── retry
//
// A loss, a timeout, a reported failure or a leave can take a task from a trainer before it is finished. The session then ends,
// and the task stays where it is, because uncommitted steps have a part of it. Only a rollback dispatches it to another
// trainer.

// explicitCommits has the state of explicit commits in addition to the tasks.
type explicitCommits struct {
	committed  uint64           // step; 0: none
	generation uint64           // current generation of the ring; 0: unknown
	rolledTo   uint64           // step that this generation began with
	members    map[Ordinal]bool // sessions of this generation
	round      uint64           // step that is being flushed; 0: none
	flushed    map[Ordinal]bool // members that flushed the round

	lost int // sessions that have ended and keep tasks; derived
}

func newExplicitCommits() *explicitCommits {
	return &explicitCommits{members: map[Ordinal]bool{}, flushed: map[Ordinal]bool{}}
}

// WaitFor says what an answer AnswerWait waits for.
type WaitFor uint8

// Reasons to wait.
const (
	WaitTask     WaitFor = iota
	WaitCommit           // no task is dispatched before a commit
	WaitRollback         // a trainer was lost with a task: no task is dispatched before a rollback
	WaitFlush            // of a commit: not every member has flushed its step
	WaitCut              // the leader takes a cut: the trainer must flush it first
	WaitStep             // the step of staged gradients is not committed
	WaitDrain            // an operator drains the trainer, which leaves
	WaitFors             // how many there are
)

func (w WaitFor) String() string {
	return [...]string{"wait", "wait: commit", "wait: rollback", "wait: flush", "wait: cut", "wait: step", "wait: drain"}[w%WaitFors]
}

// StepPlace is where the steps of a job of explicit commits stand.
type StepPlace struct {
	Step        uint64 // the last committed one: what a restart loads; 0: none
	Generation  uint64 // of the ring that may commit
	Epoch       uint32
	Uncommitted int    // finished tasks that wait for a commit
	Round       uint64 // the cut that is under way, or was given up last; 0: none. With Options.Cuts only
}

// Errors of explicit commits.
var (
	ErrNotExplicit     = errors.New("this job has no explicit commits")
	ErrExplicit        = errors.New("this job has explicit commits")
	ErrOtherGeneration = errors.New("another generation of the ring is current")
	ErrOtherStep       = errors.New("unexpected step")
	ErrNotHeld         = errors.New("the trainer does not hold the task")
	ErrMemberLost      = errors.New("a member was lost before it flushed: roll back")
)

var errLeadersStep = fmt.Errorf("%w of its trainers: its leader commits cuts and rolls back to them", ErrNotExplicit)

func (q *Queue) stepPlace() StepPlace {
	x := q.explicit
	p := StepPlace{Step: x.committed, Generation: x.generation, Epoch: q.epoch, Uncommitted: q.uncommitted()}
	if q.opt.Cuts {
		p.Round = x.round
	}
	return p
}

func (q *Queue) stepAnswer() Answer { return Answer{Kind: AnswerStep, Place: q.stepPlace()} }

func (q *Queue) uncommitted() int {
	n := 0
	for _, s := range q.sets {
		n += len(s.uncommitted)
	}
	return n
}

// roomToDispatch reports whether a new task of a set may be dispatched: each training task may come to wait for a commit.
func (q *Queue) roomToDispatch(s *set) bool {
	if !q.countsWithStep(s) {
		return true
	}
	n := q.uncommitted()
	for _, s := range q.sets {
		if s.kind == Training {
			n += len(s.byKey)
		}
	}
	//guard:uncommitted-limit
	return n < q.opt.MaxUncommitted
}

// waitsFor returns the reason that no task can be dispatched before a commit or a rollback.
func (q *Queue) waitsFor() WaitFor {
	switch {
	case q.explicit == nil:
		return WaitTask
	case q.explicit.lost > 0 || q.misplaced():
		return WaitRollback
	case q.uncommitted() == 0:
		return WaitTask
	}
	for _, s := range q.sets {
		todo := len(s.open) > 0 && s.cursor < s.tasks
		switch {
		case s.kind != Training:
		case s.retry > 0 || todo && q.roomToDispatch(s):
			return WaitTask
		case !todo && len(s.byKey) > 0:
			return WaitTask // others have the last ones
		}
	}
	//guard:commit-requested
	return WaitCommit
}

// checkSteps refuses finishes without a step where one is needed, and with one where none is.
func (q *Queue) checkSteps(results []Result) error {
	for _, r := range results {
		switch {
		case q.explicit == nil && r.Step != 0:
			return fmt.Errorf("%w: a finish carries no step, found %d", ErrNotExplicit, r.Step)
		case q.explicit != nil && r.Error == "" && r.Step == 0 && r.Token.Kind == Training:
			return fmt.Errorf("%w: a finish carries the step, from 1, that applied the last record of the task, found none", ErrExplicit)
		}
	}
	return nil
}

// member finds the sender of an event of explicit commits. Trainer 0 is the master itself.
func (q *Queue) member(o Ordinal, incarnation uint64) (t *trainer, refused *Answer) {
	if q.explicit == nil {
		return nil, &Answer{Err: fmt.Errorf("%w: a finish counts as soon as it is stored", ErrNotExplicit)}
	}
	if o == 0 {
		return nil, nil
	}
	if t = q.known(o, incarnation); t == nil {
		return nil, &Answer{Kind: AnswerRejoin}
	}
	q.observe(t)
	return t, nil
}

func (x *explicitCommits) otherGeneration(found uint64) error {
	return fmt.Errorf("%w: expected generation %d, found %d: ask for the step to load, and join that ring", ErrOtherGeneration, x.generation, found)
}

// enter makes a session that receives the current step a member of this generation.
func (q *Queue) enter(t *trainer) {
	if t != nil && !q.explicit.members[t.ordinal] {
		q.explicit.members[t.ordinal] = true
		if q.opt.Cuts && q.explicit.round != 0 {
			q.explicit.flushed[t.ordinal] = true // its first step is after that cut
		}
		q.dirty = true
	}
}

// LastStep asks which step to load, and makes the trainer a member of the ring, unless its epoch differs.
type LastStep struct {
	Trainer     Ordinal
	Incarnation uint64
	Epoch       uint32 // of the trainer; 0: it takes the epoch of the answer
}

func (ev *LastStep) apply(q *Queue) Answer {
	t, refused := q.member(ev.Trainer, ev.Incarnation)
	if refused != nil {
		return *refused
	}
	//guard:member-of-this-epoch
	if ev.Epoch != 0 && ev.Epoch != q.epoch {
		return q.stepAnswer() // it joins again; a member that never flushes would stop all
	}
	//guard:cut-holds-new-members
	if q.holdsMembers() && t != nil && !q.explicit.members[t.ordinal] {
		return Answer{Kind: AnswerWait, WaitFor: WaitFlush} // gradients that it pushes before the versions are fixed would be in the cut
	}
	q.enter(t)
	return q.stepAnswer()
}

// TaskPosition is the progress of a trainer in a task: Records of it, in the task's order, are in steps up to the flushed
// step.
type TaskPosition struct {
	Token   Token
	Records int64
}

// StepFlushed reports that a member has saved its part of step Step of the model, and has sent all finishes of steps up to it.
// Positions lists the tasks with some records in those steps, but not all: held tasks, and tasks that the member
// has finished since. All members flush the same step. The next step follows after that step is committed or rolled back.
type StepFlushed struct {
	Trainer     Ordinal
	Incarnation uint64
	Generation  uint64
	Step        uint64
	Positions   []TaskPosition
}

func (ev *StepFlushed) apply(q *Queue) Answer {
	t, refused := q.member(ev.Trainer, ev.Incarnation)
	if refused != nil {
		return *refused
	}
	x := q.explicit
	switch {
	case t == nil:
		return Answer{Kind: AnswerRejoin}
	case ev.Generation != x.generation:
		return Answer{Err: x.otherGeneration(ev.Generation)}
	case q.opt.Cuts && ev.Step != x.round && ev.Step > x.committed:
		return Answer{Err: fmt.Errorf("%w: cut %d (0: none) is under way, found %d", ErrOtherStep, x.round, ev.Step)}
	case ev.Step == 0 || x.round != 0 && ev.Step > x.committed && ev.Step != x.round:
		return Answer{Err: fmt.Errorf("%w: expected step %d, which the members flush, found %d: commit or roll back that step first", ErrOtherStep, x.round, ev.Step)}
	case ev.Step <= x.committed || x.flushed[t.ordinal]:
		return q.flushAnswer()
	}
	marks := make([]*int64, len(ev.Positions))
	for i, p := range ev.Positions {
		mark, err := q.markOf(t, p, ev.Step)
		if err != nil {
			return Answer{Err: err}
		}
		marks[i] = mark
	}
	x.round = ev.Step
	for i, mark := range marks {
		if mark != nil {
			*mark = ev.Positions[i].Records + 1
		}
	}
	x.flushed[t.ordinal] = true
	q.unblock(WaitTask, WaitFlush)
	return q.flushAnswer()
}

// flushAnswer makes a member that flushed a cut wait for its release by the leader.
func (q *Queue) flushAnswer() Answer {
	if q.holdsMembers() {
		return Answer{Kind: AnswerWait, WaitFor: WaitFlush}
	}
	return q.stepAnswer()
}

// markOf finds where a position belongs; nil: the flushed step has the whole task.
func (q *Queue) markOf(t *trainer, p TaskPosition, step uint64) (mark *int64, err error) {
	s, e, _ := q.locate(p.Token)
	if s == nil || s.kind != Training {
		return nil, fmt.Errorf("%w: %v", ErrNotHeld, p.Token)
	}
	uncommitted := s.uncommittedAt(liveKey{p.Token.Pass, p.Token.Position})
	base := int64(0)
	switch {
	case e != nil && e.holderCount == 1 && e.holders[0].trainer == t && e.holders[0].attempt == p.Token.Attempt:
		mark, base = &e.holders[0].mark, e.base
	case uncommitted != nil && uncommitted.next == p.Token.Attempt+1:
		if uncommitted.step <= step {
			return nil, nil
		}
		mark, base = &uncommitted.mark, uncommitted.base
	default:
		return nil, fmt.Errorf("%w: %v", ErrNotHeld, p.Token)
	}
	most := int64(math.MaxInt64 - 1)
	if s.table != nil {
		most = int64(s.table.TaskRecords(s.orderOf(p.Token.Pass).index(p.Token.Position)))
	}
	if p.Records < base || p.Records > most {
		return nil, fmt.Errorf("%w: task %v: expected %d to %d of its records in the flushed steps, found %d", ErrOtherStep, p.Token, base, most, p.Records)
	}
	return mark, nil
}

// StepCommit counts the tasks finished in steps up to Step, once every member has flushed it. Until then the answer is
// AnswerWait. The members are the sessions that entered this generation by LastStep or Rollback. An ended session counts while
// it keeps a task.
type StepCommit struct {
	Trainer     Ordinal
	Incarnation uint64
	Generation  uint64
	Step        uint64
	Keys        []Write // of other components, stored with the commit: the manifest of the checkpoint set
	Version     uint64  // of the parameters: a synchronous job makes no version up to it again
}

func (ev *StepCommit) apply(q *Queue) Answer {
	if _, refused := q.member(ev.Trainer, ev.Incarnation); refused != nil {
		return *refused
	}
	if q.opt.Cuts && ev.Trainer != 0 {
		return Answer{Err: errLeadersStep}
	}
	x := q.explicit
	switch {
	case ev.Generation != x.generation:
		return Answer{Err: x.otherGeneration(ev.Generation)}
	case ev.Step != 0 && ev.Step == x.committed && ev.Step != x.round:
		return q.stepAnswer()
	case ev.Step <= x.committed || x.round != 0 && ev.Step != x.round:
		return Answer{Err: fmt.Errorf("%w: step %d is committed and step %d (0: none) is being flushed, found %d", ErrOtherStep, x.committed, x.round, ev.Step)}
	case x.round == 0:
		return Answer{Kind: AnswerWait, WaitFor: WaitFlush}
	}
	wait, err := q.unflushed(ev.Step)
	if err != nil {
		return Answer{Err: err}
	}
	if x.members[0] {
		return Answer{Err: fmt.Errorf("%w: cut %d was abandoned", ErrOtherStep, ev.Step)}
	}
	if wait || q.holdsMembers() {
		return Answer{Kind: AnswerWait, WaitFor: WaitFlush}
	}
	q.commitStep(ev.Step)
	q.forgetRates(ev.Version)
	q.storeKeys(ev.Keys)
	return q.stepAnswer()
}

// unflushed reports whether a member has still to flush a step. It returns an error if a member can never flush it: the
// records that the member trained by that step are then unknown.
func (q *Queue) unflushed(step uint64) (wait bool, err error) {
	x := q.explicit
	for _, t := range q.sortedTrainers() {
		switch {
		case x.flushed[t.ordinal] || !x.members[t.ordinal] && !t.holdsTraining():
		case !t.gone:
			//guard:commit-waits-for-members
			wait = true
		//guard:lost-member-with-task
		case t.holdsTraining():
			return false, fmt.Errorf("%w: trainer %s, step %d", ErrMemberLost, t.id, step)
		}
	}
	for _, s := range q.sets {
		for _, a := range s.uncommitted { // finished later: the step may have a part of it
			//guard:lost-member-after-finish
			if a.step <= step || x.flushed[a.by] {
				continue
			}
			if t := q.trainers[a.by]; t != nil && !t.gone {
				wait = true
			} else {
				return false, fmt.Errorf("%w: trainer %d, which finished position %d of pass %d in step %d, after step %d", ErrMemberLost, a.by, a.position, a.pass, a.step, step)
			}
		}
	}
	return wait, nil
}

// commitStep counts the tasks finished by a step, and moves base of the other tasks.
func (q *Queue) commitStep(step uint64) {
	x := q.explicit
	x.committed = step
	q.dirty = true
	q.ledger.committed(step, x.generation)
	counted := 0
	for _, s := range q.sets {
		before := len(s.uncommitted)
		s.uncommitted = slices.DeleteFunc(s.uncommitted, func(a uncommittedTask) bool {
			//guard:commit-excludes-later-steps
			if a.step > step {
				return false
			}
			p := s.openPass(a.pass)
			p.count(a.position)
			p.uncommitted--
			return true
		})
		counted += before - len(s.uncommitted)
		q.moveBases(s)
	}
	q.endRound()
	q.notice(false, "step committed", map[string]any{"step": step, "generation": x.generation, "counted": counted})
	for _, s := range q.sets {
		q.advance(s)
	}
}

// moveBases makes the marks of the partly committed tasks their bases.
func (q *Queue) moveBases(s *set) {
	s.compact()
	for _, e := range s.live {
		if mark := e.holders[0].mark; e.holderCount > 0 && mark != 0 && mark-1 != e.base {
			//guard:commit-moves-base
			e.base = mark - 1
			q.ledger.partly(s.id, liveKey{e.pass, e.position}, e.next-1, e.base)
		}
	}
	for i := range s.uncommitted {
		if a := &s.uncommitted[i]; a.mark != 0 && a.mark-1 != a.base {
			a.base = a.mark - 1
			q.ledger.partly(s.id, a.liveKey, a.next-1, a.base)
		}
	}
}

// endRound forgets who flushed what.
func (q *Queue) endRound() {
	q.explicit.round = 0
	clear(q.explicit.flushed)
	for _, s := range q.sets {
		for _, e := range s.byKey {
			e.holders[0].mark = 0
		}
		for i := range s.uncommitted {
			s.uncommitted[i].mark = 0
		}
	}
}

// Rollback begins a new generation of the ring from the last committed step. All live tasks and all tasks that were finished
// later are to be dispatched again, starting at base. The epoch grows, so that nothing of the old epoch has an effect. A
// repeated Rollback has the same answer.
type Rollback struct {
	Trainer     Ordinal
	Incarnation uint64
	Generation  uint64
	Step        uint64
	Version     uint64  // of the parameters at that step, in a synchronous job
	Keys        []Write // of other components, stored with the rollback: another placement of the parameters
}

func (ev *Rollback) apply(q *Queue) Answer {
	t, refused := q.member(ev.Trainer, ev.Incarnation)
	if refused != nil {
		return *refused
	}
	if q.opt.Cuts && ev.Trainer != 0 {
		return Answer{Err: errLeadersStep}
	}
	x := q.explicit
	//guard:rollback-once-per-generation
	switch {
	case ev.Generation < x.generation || ev.Generation == 0:
		return Answer{Err: x.otherGeneration(ev.Generation)}
	case ev.Generation == x.generation && ev.Step == x.rolledTo:
		q.enter(t)
		return q.stepAnswer()
	case ev.Generation == x.generation:
		return Answer{Err: fmt.Errorf("%w: generation %d began from step %d, found %d", ErrOtherStep, x.generation, x.rolledTo, ev.Step)}
	case q.status == Ended:
		return Answer{Kind: AnswerEnded}
	case q.status == Failed:
		return Answer{Kind: AnswerFailed}
	case ev.Step != x.committed:
		return Answer{Err: fmt.Errorf("%w: expected the last committed step, %d, found %d: load that step", ErrOtherStep, x.committed, ev.Step)}
	//guard:rollback-epoch-limit
	case q.epoch == math.MaxUint32 || q.opt.Cuts && q.epoch >= MaxEpoch:
		return Answer{Err: fmt.Errorf("%w: epoch %d", ErrTooOften, q.epoch)}
	}
	//guard:rollback-starts-epoch
	q.epoch++
	q.rollback(ev.Generation)
	q.resetSteps(Step{Version: ev.Version, Epoch: q.epoch})
	//guard:placement-stored-with-rollback
	q.storeKeys(ev.Keys)
	q.enter(t)
	return q.stepAnswer()
}

// rollback returns to the last committed step in a new epoch. It writes the state alone. The next ticks end the remaining
// sessions and set aside the tasks that failed too often, a bounded number at a time.
func (q *Queue) rollback(generation uint64) {
	x := q.explicit
	x.generation, x.rolledTo = generation, x.committed
	q.endRound()
	clear(x.members)
	q.unblock(WaitTask, WaitFlush, WaitStep)
	q.ledger.rolledBack(x.committed, generation, q.epoch)
	back := 0
	//guard:rollback-undoes-finishes
	for _, s := range q.sets {
		s.compact()
		for _, e := range s.live {
			for e.holderCount > 0 {
				h := e.holders[0]
				q.detach(e, h.trainer)
				q.ledger.returned(e, h.trainer.ordinal, h.attempt)
				back++
			}
		}
		for _, a := range s.uncommitted {
			s.openPass(a.pass).uncommitted--
			e := s.add(a.pass, a.position)
			e.base, e.next = a.base, a.next
		}
		back += len(s.uncommitted)
		clear(s.uncommitted)
		s.uncommitted = s.uncommitted[:0]
		s.compact()
	}
	q.notice(false, "rolled back", map[string]any{"step": x.committed, "generation": generation, "epoch": q.epoch, "tasks": back})
}

// keepsTasks reports whether the tasks of a lost trainer stay with it until a rollback.
func (q *Queue) keepsTasks() bool {
	//guard:lost-trainer-retrained-alone
	return q.explicit != nil && !q.opt.RetrainLost
}

// keep ends a session whose tasks stay where they are until a rollback.
func (q *Queue) keep(t *trainer) {
	q.giveBack(t, false, func(e *entry) bool { return !q.countsWithStep(e.set) })
	if len(t.holds) == 0 {
		q.forget(t)
		return
	}
	if !t.running() { // the running task was returned
		q.start(t.holds[0], t.holds[0].holderOf(t))
	}
	t.keeps = true
	q.explicit.lost++
	q.dirty = true
	if q.opt.Cuts {
		//guard:rollback-due-raised
		q.raise(RollbackDue{})
	}
	if q.byID[t.id] == t {
		q.saveTrainer(t)
	}
}

// chargeAll charges a loss to the task whose clock runs.
func (q *Queue) chargeAll(t *trainer) {
	for _, e := range t.holds {
		if e.holderOf(t).start != 0 {
			t.charge(e)
		}
	}
}

// tickExplicit handles expired deadlines and completes earlier rollbacks. It writes a bounded number of keys, until limit are
// pending; the next tick continues.
func (q *Queue) tickExplicit(limit int) {
	for _, s := range q.sets {
		for i := 0; i < len(s.live) && q.PendingWrites() < limit; i++ {
			e := s.live[i]
			switch {
			case e.gone:
			case e.holderCount == 0:
				q.retryOrSetAside(e)
			case !q.countsWithStep(s):
				q.passDeadline(e, limit)
			default:
				if h := e.holders[0]; h.start != 0 && q.clock >= h.soft && !h.trainer.gone {
					q.timeOut(e, h)
					q.lose(h.trainer, false)
				} else if !h.trainer.gone {
					q.askProgress(e, &e.holders[0])
				}
			}
		}
	}
	for _, t := range q.sortedTrainers() {
		if q.PendingWrites() >= limit {
			return
		}
		if t.gone && len(t.holds) == 0 {
			q.forget(t)
		}
	}
}
