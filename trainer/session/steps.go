package session

import (
	"cmp"
	"slices"

	"trainmaster/taskqueue"
)

// Steps is what a trainer of a job of explicit commits knows of its tasks: which step took how
// many records of each. A nil one knows nothing.
type Steps struct {
	Generation uint64 // of the ring
	works      map[taskqueue.Token]*work
}

// work is how far a task is: after steps[i] it had used records[i], from its beginning.
type work struct {
	base     int64
	steps    []uint64
	records  []int64
	finished bool
}

// NewSteps knows of no task yet.
func NewSteps() *Steps { return &Steps{works: map[taskqueue.Token]*work{}} }

// Begin takes a task of which the loaded step has the first records.
func (x *Steps) Begin(token taskqueue.Token, base int64) {
	if x != nil && x.works[token] == nil {
		x.works[token] = &work{base: base}
	}
}

// Used is how many records of a task were used, from its beginning.
func (x *Steps) Used(token taskqueue.Token) int64 {
	if x == nil || x.works[token] == nil {
		return 0
	}
	w := x.works[token]
	if len(w.records) > 0 {
		return w.records[len(w.records)-1]
	}
	return w.base
}

// Apply adds records that a step applied.
func (x *Steps) Apply(token taskqueue.Token, step uint64, records int) {
	if x == nil || x.works[token] == nil {
		return
	}
	used := x.Used(token) + int64(records)
	w := x.works[token]
	if n := len(w.steps); n > 0 && w.steps[n-1] == step {
		w.records[n-1] = used
		return
	}
	w.steps, w.records = append(w.steps, step), append(w.records, used)
}

// Finish notes a task as finished and returns the step that took its last record; 1 when the
// loaded step had all of it, which the master takes for the next one.
func (x *Steps) Finish(token taskqueue.Token) uint64 {
	if x == nil || x.works[token] == nil {
		return 0
	}
	w := x.works[token]
	w.finished = true
	if len(w.steps) == 0 {
		return 1
	}
	return w.steps[len(w.steps)-1]
}

// at returns how many records of a task are in steps up to one.
func (w *work) at(step uint64) int64 {
	n := w.base
	for i, s := range w.steps {
		if s <= step {
			n = w.records[i]
		}
	}
	return n
}

// whole reports whether the steps up to one have all of a finished task.
func (w *work) whole(step uint64) bool {
	return w.finished && (len(w.steps) == 0 || w.steps[len(w.steps)-1] <= step)
}

// Positions are those of the tasks that the steps up to one have in part.
func (x *Steps) Positions(step uint64) []taskqueue.TaskPosition {
	var list []taskqueue.TaskPosition
	for token, w := range x.works {
		if n := w.at(step); n > w.base && !w.whole(step) {
			list = append(list, taskqueue.TaskPosition{Token: token, Records: n})
		}
	}
	slices.SortFunc(list, func(a, b taskqueue.TaskPosition) int {
		return cmp.Or(cmp.Compare(a.Token.Dataset, b.Token.Dataset), cmp.Compare(a.Token.Pass, b.Token.Pass), a.Token.Position-b.Token.Position)
	})
	return list
}

// Committed forgets what a committed step has.
func (x *Steps) Committed(step uint64) {
	for token, w := range x.works {
		if w.whole(step) {
			delete(x.works, token)
			continue
		}
		w.base = w.at(step)
	}
}

// Drop forgets all tasks.
func (x *Steps) Drop() { clear(x.works) }
