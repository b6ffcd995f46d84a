package bench

import (
	"context"
	"iter"
	"maps"
	"slices"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
)

// recordEvents reads the whole record of a job.
func recordEvents(ctx context.Context, store *etcdstore.Store) iter.Seq2[taskqueue.RecordEvent, error] {
	return func(yield func(taskqueue.RecordEvent, error) bool) {
		values, _, err := store.Prefixed(ctx, "/record/")
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
