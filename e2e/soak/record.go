package main

import (
	"context"
	"iter"
	"maps"
	"slices"

	"trainmaster/taskqueue"
)

// record reads the whole record of the job, as it was written.
func (c *cluster) record(ctx context.Context) iter.Seq2[taskqueue.RecordEvent, error] {
	return func(yield func(taskqueue.RecordEvent, error) bool) {
		values, _, err := c.store.Prefixed(ctx, "/record/")
		if err != nil {
			yield(taskqueue.RecordEvent{}, err)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			for ev, err := range taskqueue.RecordEvents(values[key]) {
				if !yield(ev, err) || err != nil {
					return
				}
			}
		}
	}
}
