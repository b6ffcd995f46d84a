package bench

import (
	"context"
	"fmt"
	"iter"

	"trainmaster/etcdstore"
	"trainmaster/ledger"
	"trainmaster/taskqueue"
)

// maxStateBytes bounds what the state of a job may be when it is decoded.
const maxStateBytes = 64 << 20

// LedgerEvents reads the whole ledger of the default job, sealed or not.
func LedgerEvents(ctx context.Context, store *etcdstore.Store) iter.Seq2[taskqueue.LedgerEvent, error] {
	return func(yield func(taskqueue.LedgerEvent, error) bool) {
		if err := ledgerEvents(ctx, store, func(ev taskqueue.LedgerEvent) bool { return yield(ev, nil) }); err != nil {
			yield(taskqueue.LedgerEvent{}, fmt.Errorf("read the ledger: %w", err))
		}
	}
}

// ledgerEvents calls more with each event, until it wants no more.
func ledgerEvents(ctx context.Context, store *etcdstore.Store, more func(taskqueue.LedgerEvent) bool) error {
	stored, _, err := store.State(ctx)
	if err != nil {
		return err
	}
	var state taskqueue.Snapshot
	if err := etcdstore.Decode(stored, &state, maxStateBytes); err != nil {
		return err
	}
	reader, err := ledger.Open(ctx, store, "default", "")
	if err != nil {
		return err
	}
	for entry, err := range reader.Entries(ctx, state.Commit) {
		if err != nil {
			return err
		}
		for ev, err := range taskqueue.LedgerEvents(entry.Events) {
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
