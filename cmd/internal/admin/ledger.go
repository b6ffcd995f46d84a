package admin

import (
	"context"
	"errors"
	"fmt"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/ledger"
	"trainmaster/ledger/verify"
	"trainmaster/master/committer"
	"trainmaster/taskqueue"
)

// OpenLedger reads the state of a job, decoded, and finds its ledger.
func OpenLedger(ctx context.Context, store *etcdstore.Store, from Location, dir string) (*ledger.Reader, *taskqueue.Snapshot, error) {
	stored, _, err := store.State(ctx)
	if err != nil {
		return nil, nil, err
	}
	if stored == nil {
		return nil, nil, from.NoSuchJob(ctx, store)
	}
	state := &taskqueue.Snapshot{}
	if err := etcdstore.Decode(stored, state, committer.MaxStoredState); err != nil {
		return nil, nil, fmt.Errorf("read the state: %w", err)
	}
	reader, err := ledger.Open(ctx, store, from.Etcd.Job, dir)
	if errors.Is(err, ledger.ErrElsewhere) {
		return nil, nil, cli.UsageErrorf("%w", err)
	}
	return reader, state, err
}

// NoLedger is the usage error of a job that has none.
func NoLedger(store *etcdstore.Store, from Location) error {
	return cli.UsageErrorf("no ledger of job %q under %s%s: expected entries, found none: it ran with --ledger=false, or no trainer has joined it yet", from.Etcd.Job, store.Prefix(), taskqueue.LedgerPrefix)
}

// VerifyJob checks the ledger of a job. The reports are nil if there are none. The errors that it finds come with them.
func VerifyJob(ctx context.Context, store *etcdstore.Store, from Location, dir string) (reports []taskqueue.PassReport, wrong error) {
	reader, state, err := OpenLedger(ctx, store, from, dir)
	if err != nil {
		return nil, err
	}
	reports, wrong = verify.Check(ctx, reader, state)
	if errors.Is(wrong, verify.ErrNoEntries) {
		return nil, NoLedger(store, from)
	}
	return reports, wrong
}
