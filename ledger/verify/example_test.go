package verify_test

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strings"

	"trainmaster/ledger"
	"trainmaster/ledger/verify"
	"trainmaster/taskqueue"
)

// memory is a store of the ledger of a job. A real store is an etcdstore.Store.
type memory map[string][]byte

func (m memory) LedgerEntries(_ context.Context, first, last uint64, limit int) (page []ledger.Entry, head []byte, revision int64, err error) {
	for commit := first; commit <= last && len(page) < limit; commit++ {
		if events, ok := m[taskqueue.LedgerKey(commit)]; ok {
			page = append(page, ledger.Entry{Commit: commit, Events: events})
		}
	}
	return page, m[ledger.HeadKey], 1, nil
}

func (m memory) Value(_ context.Context, key string) ([]byte, int64, error) { return m[key], 1, nil }

func (m memory) Keys(_ context.Context, prefix string) (keys []string, err error) {
	for key := range m {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

// The ledger of a completed job proves that each task was counted once, and names the trainer of a record.
func Example() {
	ctx := context.Background()
	entries, _, queue := job()
	state := queue.Snapshot(0, 0) // as stored in etcd

	reader, err := ledger.Open(ctx, memory(entries), "digits", "")
	if err != nil {
		log.Fatal(err)
	}
	reports, err := verify.Check(ctx, reader, state)
	if err != nil {
		log.Fatal(err) // a task is missing or was counted twice
	}
	for _, pass := range reports {
		fmt.Printf("pass %d: %d of %d tasks counted once\n", pass.Pass, pass.CountedOnce, pass.Tasks)
	}

	trace, err := verify.FindRecord(queue, "/data/train", 15)
	if err != nil {
		log.Fatal(err)
	}
	if err := trace.Read(ctx, queue, reader, state); err != nil {
		log.Fatal(err)
	}
	for _, pass := range trace.Passes {
		fmt.Printf("record %d is in task %d: %s by %s in pass %d\n", trace.Record, trace.Task, pass.Outcome, pass.Trainer, pass.Pass)
	}
	// Output:
	// pass 1: 2 of 2 tasks counted once
	// record 15 is in task 1: counted by trainer-0 in pass 1
}
