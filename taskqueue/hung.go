package taskqueue

import (
	"maps"
	"slices"
)

// hung is a trainer whose task timed out, and that has made no request since. It is not stored: the next leader begins with the next timeout.
type hung struct {
	trainer Ordinal
	control string
	task    Token
	at      Clock // hard deadline of the task; after a stop, the time that the trainer has to follow it
	stopped bool
}

// TrainerHung asks to end the process of a trainer: the hard deadline of a task that it lost has passed, and it has made no request since, also
// not after a stop. It is not outstanding in a new term.
type TrainerHung struct {
	Trainer Ordinal
	ID      string
	Task    Token
}

// Key implements Effect. The trainer takes the place of the dataset.
func (e TrainerHung) Key() EffectKey { return EffectKey{Kind: OnTrainerHung, Set: int(e.Trainer)} }

// watchHung waits for a request of a trainer whose task timed out.
func (q *Queue) watchHung(e *entry, h *holder) {
	if t := h.trainer; !t.plain && !q.ofOwnRound(e) && q.hung[t.id] == nil {
		q.hung[t.id] = &hung{trainer: t.ordinal, control: t.control, task: q.token(e, h.attempt), at: h.start.Add(hardDeadlineFactor * q.timeoutOf(e))}
	}
}

// tickHung stops trainers beyond the hard deadline that have a service for commands, and then reports them.
func (q *Queue) tickHung() {
	if q.hasEnded() {
		clear(q.hung)
	}
	for _, id := range slices.Sorted(maps.Keys(q.hung)) {
		h := q.hung[id]
		switch {
		//guard:hung-trainer-has-its-time
		case q.clock < h.at:
		//guard:hung-trainer-stopped-first
		case h.control != "" && !h.stopped:
			h.stopped, h.at = true, q.clock.Add(q.opt.SessionTTL)
			q.raise(StopDue{Trainer: h.trainer, ID: id, Address: h.control, Stops: []Token{h.task}})
		default:
			delete(q.hung, id)
			q.notice(true, "trainer hangs beyond the hard deadline of its task", map[string]any{"trainer": id, "task": h.task.String()})
			//guard:hung-trainer-reported
			q.raise(TrainerHung{Trainer: h.trainer, ID: id, Task: h.task})
		}
	}
}
