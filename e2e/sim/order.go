package sim

import (
	"slices"

	"trainmaster/taskqueue"
)

// order returns the position of a task in a pass. It uses the production code for the order of a
// pass: the order is part of the stored format and has golden files.
func (w *world) order(p taskqueue.Pass, index int) int {
	if !w.plan.shuffle || p == 1 && w.plan.segments != nil { // an online dataset is trained in the order of its files first
		return index
	}
	for len(w.orders) < int(p) {
		w.orders = append(w.orders, nil)
	}
	if w.orders[p-1] == nil {
		w.orders[p-1] = taskqueue.Order(w.report.Seed, p, w.plan.tasks)
	}
	return slices.Index(w.orders[p-1], index)
}
