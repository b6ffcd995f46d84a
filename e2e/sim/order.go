package sim

import (
	"slices"

	"trainmaster/taskqueue"
)

// order is where a task stands in the order of a pass. It asks the production code for the
// whole order of a queue that nothing happened to: where each position stands is part of the
// stored format, and has golden files.
func (w *world) order(p taskqueue.Pass, index int) int {
	if !w.plan.shuffle {
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
