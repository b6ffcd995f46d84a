package taskqueue

import (
	"encoding/json"
	"fmt"
)

// AsideDetail is the value under /task_queues/aside/<dataset>/<task>, as JSON.
type AsideDetail struct {
	Task     int    `json:"task"`
	Pass     Pass   `json:"pass"`
	Failures int    `json:"failures"`
	Losses   int    `json:"losses"`
	Holder   string `json:"holder"`
	Error    string `json:"error"`
}

// missing reports whether the task is not counted in pass p for being set aside. It was
// counted in the passes before, and perhaps in the one after, which was open as well.
func (a *asideTask) missing(p Pass) bool {
	return a != nil && a.pass <= p && !(a.counted && p == a.pass+1)
}

func asideKey(set, index int) string { return fmt.Sprintf("/task_queues/aside/%d/%d", set, index) }

func asideDetail(s *set, e *entry, index int) []byte {
	b, err := json.Marshal(AsideDetail{Task: index, Pass: e.pass, Failures: e.failures, Losses: e.losses, Holder: e.lastHolder, Error: e.lastError})
	if err != nil {
		panic(err) // numbers and strings always encode
	}
	return b
}

// RetryAside puts a set-aside task back, by an operator's word. Where the oldest open
// pass is already beyond its position it is dispatched again in that pass; else the
// cursor will reach it.
type RetryAside struct {
	Set   int
	Index int
}

func (ev *RetryAside) apply(q *Queue) Answer {
	if ev.Set < 0 || ev.Set >= len(q.sets) || q.sets[ev.Set].aside[ev.Index] == nil {
		return Answer{Err: fmt.Errorf("%w: task %d of dataset %d is not set aside", ErrNotPending, ev.Index, ev.Set)}
	}
	s := q.sets[ev.Set]
	a := s.aside[ev.Index]
	q.record.retried(s.id, ev.Index)
	q.leaveAside(s, a, a.pass)
	if q.status == Paused && len(s.aside) <= q.opt.MaxSetAside {
		q.status, q.reason = Running, ""
	}
	return Answer{}
}

// leaveAside takes a task out of the list. In the open passes from the given one on it
// is dispatched again where the cursor has passed it by.
func (q *Queue) leaveAside(s *set, a *asideTask, from Pass) {
	delete(s.aside, a.index)
	q.asides[asideKey(s.id, a.index)] = nil
	q.dirty = true
	for _, p := range s.open {
		position := s.orderOf(p.pass).position(a.index)
		if p.pass >= from && a.missing(p.pass) && position < s.dispatched(p.pass) {
			s.add(p.pass, position).next = a.next
		}
	}
}
