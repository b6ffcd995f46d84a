package session

import (
	"cmp"
	"slices"

	"trainmaster/taskqueue"
)

// Steps has the records of tasks by step, for a trainer in a job of explicit commits. A nil Steps
// has no tasks.
type Steps struct {
	Generation uint64 // of the ring
	works      map[taskqueue.Token]*work
}

// work is the progress of a task: after steps[i] it had used records[i], from its beginning.
type work struct {
	base     int64
	steps    []uint64
	records  []int64
	finished bool
}

// NewSteps returns Steps without tasks.
func NewSteps() *Steps { return &Steps{works: map[taskqueue.Token]*work{}} }

// Begin adds a task whose first records are in the loaded step.
func (x *Steps) Begin(token taskqueue.Token, base int64) {
	if x != nil && x.works[token] == nil {
		x.works[token] = &work{base: base}
	}
}

// Used returns the number of used records of a task, from its beginning.
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

// Finish records a task as finished and returns the step of its last record. It returns 1 if the
// loaded step has all records; the master counts the task with the next step.
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

// at returns the number of records of a task in the steps up to a step.
func (w *work) at(step uint64) int64 {
	n := w.base
	for i, s := range w.steps {
		if s <= step {
			n = w.records[i]
		}
	}
	return n
}

// whole reports whether the steps up to a step have all records of a finished task.
func (w *work) whole(step uint64) bool {
	return w.finished && (len(w.steps) == 0 || w.steps[len(w.steps)-1] <= step)
}

// Positions returns the tasks with some records, but not all, in the steps up to the given step.
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

// Committed drops the records of a committed step.
func (x *Steps) Committed(step uint64) {
	for token, w := range x.works {
		if w.whole(step) {
			delete(x.works, token)
			continue
		}
		w.base = w.at(step)
	}
}

// Drop drops all tasks.
func (x *Steps) Drop() { clear(x.works) }
