package taskqueue

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// A round of a trainer evaluates the model that one trainer has now. Only this trainer receives its tasks, one at a time. With an
// address for commands, it receives them by a call of the leader; with Heartbeat.Evaluates, in the answer to a heartbeat. Otherwise it receives
// them in the answer to its next request. The round ends early with a reason, and sets no task aside, if the session of the trainer ends or a
// task fails or times out. It also ends if no task has finished for Options.FirstTimeout. So it
// never delays the rounds of the job for longer.

// ErrSharedModel is returned for a round of a trainer whose model is the model of the job.
var ErrSharedModel = errors.New("all trainers of a synchronous job have the same model: use master evaluate")

// MayEvaluate returns the reason that a round of a trainer cannot begin, or nil.
func (q *Queue) MayEvaluate(id string) error {
	t := q.byID[id]
	switch {
	case q.sync != nil:
		return ErrSharedModel
	case t == nil || t.gone:
		return fmt.Errorf("%w: %q; %s", ErrNoTrainer, id, q.trainerNames())
	case t.plain:
		return fmt.Errorf("%w: %q has no session: expected a trainer that has joined", ErrNoCommands, id)
	case t.draining:
		return fmt.Errorf("%w: %q is being drained", ErrNoCommands, id)
	}
	return nil
}

// ownRound returns the open round of a trainer; ok is false if there is none.
func (q *Queue) ownRound() (r Round, ok bool) {
	r, open := q.Round()
	return r, open && r.Trainer != 0
}

// ofOwnRound reports whether a task is of the open round of a trainer.
func (q *Queue) ofOwnRound(e *entry) bool {
	r, ok := q.ownRound()
	return ok && e.set.id == r.Set && e.pass == r.Pass
}

// commanded reports whether t receives the tasks of its round without a request.
func (t *trainer) commanded() bool { return t.control != "" || t.evaluates }

// called reports whether t has received a task without a request: its requests do not list it.
func (q *Queue) called(e *entry, t *trainer) bool { return t.commanded() && q.ofOwnRound(e) }

// heldByRequest returns the number of tasks that t has received as answers.
func (q *Queue) heldByRequest(t *trainer) (n int) {
	for _, e := range t.holds {
		if !q.called(e, t) {
			n++
		}
	}
	return n
}

// passesBy reports whether t gets no answer from a dataset: its open round is of another trainer, or t receives its tasks without
// requests. A trainer that accepts no evaluation tasks ends its round.
func (q *Queue) passesBy(t *trainer, accepts Kinds) (set int, yes bool) {
	r, ok := q.ownRound()
	if !ok {
		return 0, false
	}
	if r.Trainer == t.ordinal && !t.commanded() && !accepts.has(Evaluation) {
		q.endOwnRound("it requests no evaluation tasks")
	}
	//guard:round-of-one-trainer
	return r.Set, r.Trainer != t.ordinal || t.commanded()
}

// EvaluateDue asks for OfferTask: the trainer of the open round has an address for commands.
type EvaluateDue struct {
	Trainer     Ordinal
	Incarnation uint64
	ID          string
	Address     string // "ip:port"
	Round       uint64
}

// Key implements Effect.
func (EvaluateDue) Key() EffectKey { return EffectKey{Kind: OnEvaluateDue} }

// evaluateDue returns the effect of the open round of a trainer with an address for commands.
func (q *Queue) evaluateDue() (due EvaluateDue, ok bool) {
	r, ok := q.ownRound()
	t := q.trainers[r.Trainer]
	if !ok || t == nil || t.gone || t.control == "" {
		return due, false
	}
	return EvaluateDue{Trainer: t.ordinal, Incarnation: t.incarnation, ID: t.id, Address: t.control, Round: r.Number}, true
}

// continueOwnRound gives a round of a trainer its time for the next task.
func (q *Queue) continueOwnRound() {
	r, ok := q.ownRound()
	if !ok {
		return
	}
	r.Until = q.clock.Add(q.opt.FirstTimeout)
	q.setRound(r)
	if due, ok := q.evaluateDue(); ok {
		q.raise(due)
	}
}

// OfferTask dispatches the next task of the round of a trainer to it, without a request of the trainer. A task that it holds is the answer
// again: the call that brings it to the trainer may have failed. Without a task, Answer.Kind is AnswerWait.
type OfferTask struct {
	Trainer     Ordinal
	Incarnation uint64
}

func (ev *OfferTask) apply(q *Queue) Answer {
	a := Answer{Kind: AnswerWait}
	if t := q.known(ev.Trainer, ev.Incarnation); t != nil && t.control != "" {
		q.offer(t, &a)
	}
	return a
}

// offer answers with a task of the round of t, if there is one.
func (q *Queue) offer(t *trainer, a *Answer) {
	r, ok := q.ownRound()
	if !ok || r.Trainer != t.ordinal {
		return
	}
	for _, e := range t.holds {
		//guard:offered-task-again
		if q.ofOwnRound(e) {
			q.answerTask(e, e.holderOf(t).attempt, a)
			return
		}
	}
	if q.status != Running || q.hold || t.draining {
		return
	}
	if e := q.pick(q.sets[r.Set], t); e != nil {
		q.dispatch(e, t, offered, a)
	}
}

// offered is the number of the request of a task that no request asked for.
const offered = 0

// endOwnRoundOf ends the round of a trainer.
func (q *Queue) endOwnRoundOf(t *trainer, why string) {
	if r, ok := q.ownRound(); ok && r.Trainer == t.ordinal {
		q.endOwnRound(why)
	}
}

// tickOwnRound ends a round of a trainer that cannot continue.
func (q *Queue) tickOwnRound() {
	r, ok := q.ownRound()
	if !ok {
		return
	}
	switch t := q.trainers[r.Trainer]; {
	case t == nil || t.gone: // a backup can have a round without its trainer
		q.endOwnRound("it was lost")
	//guard:own-round-has-a-deadline
	case q.clock >= r.Until:
		q.endOwnRound(fmt.Sprintf("it has finished no task for %v", q.opt.FirstTimeout.Round(time.Millisecond)))
	}
}

// endOwnRound ends the open round of a trainer before its last task: the remaining tasks are not dispatched, and the pass is abandoned.
func (q *Queue) endOwnRound(why string) {
	r := q.round
	s := q.sets[r.Set]
	due := StopDue{}
	rest := slices.DeleteFunc(slices.Clone(s.live), func(e *entry) bool { return e.gone })
	for _, e := range rest {
		for e.holderCount > 0 {
			h := e.holders[0]
			due.Trainer, due.ID, due.Address = h.trainer.ordinal, h.trainer.id, h.trainer.control
			due.Stops = append(due.Stops, q.token(e, h.attempt))
			q.release(e, h.trainer)
			q.ledger.returned(e, h.trainer.ordinal, h.attempt)
		}
		s.remove(e)
	}
	s.open = slices.DeleteFunc(s.open, func(p openPass) bool { return p.pass == r.Pass })
	q.ledger.passAbandoned(s.id, r.Pass)
	r.Outcome = clip(fmt.Sprintf("trainer %s: %s", r.Name, why))
	q.setRound(r)
	q.raise(PassClosed{s.id, r.Pass})
	if due.Trainer != 0 {
		q.raise(due)
	}
	for _, e := range rest {
		q.stopFormer(e)
	}
	q.notice(false, "evaluation round of a trainer ended early", map[string]any{"round": r.Number, "trainer": r.Name, "reason": why})
	q.advance(s)
}
