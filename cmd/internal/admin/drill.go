package admin

import (
	"context"
	"iter"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/local/drill"
	"trainmaster/taskqueue"
)

// OpenDrill finds the job: by etcd if endpoints are given, else by the directory of its run.
func OpenDrill(ctx context.Context, d *drill.Drill, from *Location, dir string, dirChosen bool) (closeStore func(), err error) {
	if len(from.Etcd.Endpoints) == 0 || dirChosen {
		if d.Scene, _, err = FindRun(dir); err != nil {
			return nil, cli.UsageErrorf("%w", err)
		}
		if len(from.Etcd.Endpoints) == 0 {
			from.Etcd.Endpoints = []string{d.Scene.Endpoint}
		}
	}
	if d.Store, closeStore, err = from.Open(ctx); err != nil {
		return nil, err
	}
	d.Ledger = func(ctx context.Context, through uint64) iter.Seq2[drill.Entry, error] {
		return ledgerEntries(ctx, d.Store, *from, through)
	}
	d.Verify = func(ctx context.Context) ([]taskqueue.PassReport, error) { return VerifyJob(ctx, d.Store, *from, "") }
	return closeStore, nil
}

// ledgerEntries reads the ledger up to a commit.
func ledgerEntries(ctx context.Context, store *etcdstore.Store, from Location, through uint64) iter.Seq2[drill.Entry, error] {
	return func(yield func(drill.Entry, error) bool) {
		reader, _, err := OpenLedger(ctx, store, from, "")
		if err != nil {
			yield(drill.Entry{}, err)
			return
		}
		for e, err := range reader.Entries(ctx, through) {
			if !yield(drill.Entry{Commit: e.Commit, Events: e.Events}, err) {
				return
			}
		}
	}
}
