package bench

import (
	"context"
	"fmt"
	"iter"

	"trainmaster/etcdstore"
	"trainmaster/record"
	"trainmaster/taskqueue"
)

// maxStateBytes bounds what the state of a job may be when it is decoded.
const maxStateBytes = 64 << 20

// RecordEvents reads the whole record of the default job, sealed or not.
func RecordEvents(ctx context.Context, store *etcdstore.Store) iter.Seq2[taskqueue.RecordEvent, error] {
	return func(yield func(taskqueue.RecordEvent, error) bool) {
		if err := recordEvents(ctx, store, func(ev taskqueue.RecordEvent) bool { return yield(ev, nil) }); err != nil {
			yield(taskqueue.RecordEvent{}, fmt.Errorf("read the record: %w", err))
		}
	}
}

// recordEvents calls more with each event, until it wants no more.
func recordEvents(ctx context.Context, store *etcdstore.Store, more func(taskqueue.RecordEvent) bool) error {
	stored, _, err := store.State(ctx)
	if err != nil {
		return err
	}
	var state taskqueue.Snapshot
	if err := etcdstore.Decode(stored, &state, maxStateBytes); err != nil {
		return err
	}
	reader, err := record.Open(ctx, store, "default", "")
	if err != nil {
		return err
	}
	for entry, err := range reader.Entries(ctx, state.Commit) {
		if err != nil {
			return err
		}
		for ev, err := range taskqueue.RecordEvents(entry.Events) {
			if err != nil {
				return err
			}
			if !more(ev) {
				return nil
			}
		}
	}
	return nil
}
