package taskqueue

import (
	"encoding/json"
	"fmt"
	"strings"
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

// missing reports whether pass p goes without the task, for it is set aside.
func (a *asideTask) missing(p Pass) bool {
	return a != nil && a.pass <= p && !(a.spared && p == a.pass+1)
}

// nextAttempt returns the next attempt in pass p: all lower attempts were dispatched.
func (a *asideTask) nextAttempt(p Pass) Attempt {
	switch p {
	case a.pass:
		return a.next
	case a.pass + 1:
		return a.nextNewer
	}
	return 1
}

// baseIn is the record to begin with in pass p.
func (a *asideTask) baseIn(p Pass) int64 {
	switch p {
	case a.pass:
		return a.base
	case a.pass + 1:
		return a.baseNewer
	}
	return 0
}

// setAside takes a task without holders out of its pass and of all later passes. The next evaluation round has the task again.
func (q *Queue) setAside(e *entry) {
	s := e.set
	index := s.orderOf(e.pass).index(e.position)
	switch a := s.aside[index]; {
	case a != nil && a.pass < e.pass: // it was spared
		a.spared, a.nextNewer, a.baseNewer = false, e.next, e.base
	case a != nil: // in the newer pass it was set aside before
		s.aside[index] = &asideTask{index: index, pass: e.pass, failures: e.failures, losses: e.losses, next: e.next, nextNewer: a.next, base: e.base, baseNewer: a.base, dropped: a.dropped}
	default:
		newer := e.pass + 1
		spared := s.openPass(newer) != nil && s.orderOf(newer).position(index) < s.dispatched(newer)
		s.aside[index] = &asideTask{index: index, pass: e.pass, failures: e.failures, losses: e.losses, next: e.next, nextNewer: 1, base: e.base, spared: spared}
	}
	//guard:set-aside-listed
	q.asides[AsideKey(s.id, index)] = asideDetail(s, e, index)
	q.ledger.setAside(e, index)
	q.notice(true, "task set aside", map[string]any{
		"set": s.id, "task": index, "pass": e.pass, "failures": e.failures, "losses": e.losses, "holder": e.lastHolder, "error": e.lastError,
	})
	s.remove(e)
	if len(s.aside) > q.opt.MaxSetAside && q.status == Running && s.kind == Training {
		q.pause(fmt.Sprintf("%d tasks are set aside, more than max-set-aside (%d): is a disk gone?", len(s.aside), q.opt.MaxSetAside))
	}
	q.advance(s)
}

// finishAside makes room in pass p for the late finish of a task that is set aside there.
func (q *Queue) finishAside(s *set, a *asideTask, p Pass) {
	q.dirty = true
	if p == a.pass {
		q.leaveAside(s, a, p+1)
		return
	}
	a.spared = true
}

// AsidePrefix begins the keys of AsideDetails.
const AsidePrefix = StateKey + "/aside/"

// AsideKey is where the AsideDetail of a task that is set aside stands.
func AsideKey(set, index int) string { return fmt.Sprintf("%s%d/%d", AsidePrefix, set, index) }

func asideDetail(s *set, e *entry, index int) []byte {
	b, err := json.Marshal(AsideDetail{Task: index, Pass: e.pass, Failures: e.failures, Losses: e.losses, Holder: e.lastHolder, Error: e.lastError})
	if err != nil {
		panic(err) // numbers and strings always encode
	}
	return b
}

// RetryAside puts a set-aside task back on the operator's request. If the oldest open pass is already beyond its position, the
// task is dispatched again in that pass. Otherwise the cursor reaches it later.
type RetryAside struct {
	Set   int
	Index int
}

func (ev *RetryAside) apply(q *Queue) Answer {
	if q.hasEnded() {
		return Answer{Err: fmt.Errorf("%w: the job is %s", ErrNotAside, q.status)}
	}
	a, err := q.asideTask(ev.Set, ev.Index)
	if err != nil {
		return Answer{Err: err}
	}
	if a.dropped {
		return Answer{Err: fmt.Errorf("%w: task %d of dataset %d stays set aside", ErrDropped, ev.Index, ev.Set)}
	}
	s := q.sets[ev.Set]
	q.ledger.retried(s.id, ev.Index)
	q.leaveAside(s, a, a.pass)
	if len(s.aside) <= q.opt.MaxSetAside && !strings.HasPrefix(q.reason, pausedByOperator) {
		q.resume()
	}
	return Answer{}
}

// leaveAside takes a task out of the list. In the open passes from the given one on it
// is dispatched again where the cursor has passed it by.
func (q *Queue) leaveAside(s *set, a *asideTask, from Pass) {
	delete(s.aside, a.index)
	q.asides[AsideKey(s.id, a.index)] = nil
	q.dirty = true
	for _, p := range s.open {
		position := s.orderOf(p.pass).position(a.index)
		if p.pass >= from && a.missing(p.pass) && position < s.dispatched(p.pass) {
			e := s.add(p.pass, position)
			e.next, e.base = a.nextAttempt(p.pass), a.baseIn(p.pass)
		}
	}
	s.compact() // it came out of order, and the next request may be in the same commit
}
