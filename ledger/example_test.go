package ledger_test

import (
	"context"
	"fmt"
	"log"

	"trainmaster/ledger"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// exampleStore returns a store with the ledger of a job of two tasks and one pass, and the last commit. A real store is an
// etcdstore.Store.
func exampleStore() (store ledger.Store, last uint64) {
	memory := &memory{}
	queue := taskqueue.New("digits", [16]byte{1}, 1, taskqueue.Options{Passes: 1})
	do := func(event taskqueue.Event) taskqueue.Answer {
		answer := queue.Apply(queue.Clock()+1, event)
		if ready := queue.Ready(); len(ready.Entries) > 0 {
			memory.entries = append(memory.entries, ledger.Entry{Commit: queue.Commit(), Events: ready.Entries})
		}
		return answer
	}
	table := taskqueue.NewTable(2)
	chunks := []recordio.Index{{Size: 100, Records: 10, Layout: 1}, {Offset: recordio.HeaderSize + 100, Size: 100, Records: 10, Layout: 1}}
	if err := table.Add(taskqueue.File{Path: "/data/train", Size: 240}, chunks); err != nil {
		log.Fatal(err)
	}
	do(&taskqueue.Report{Digest: [32]byte{9}, ReportID: "r", Table: table})
	session := do(&taskqueue.Join{ID: "trainer-0"})
	request := &taskqueue.Request{Trainer: session.Ordinal, Incarnation: session.Incarnation, Want: true}
	for request.Seq = 1; request.Seq <= 3; request.Seq++ {
		request.Ack = request.Seq
		request.Finished = []taskqueue.Result{{Token: do(request).Token}}
	}
	return memory, queue.Commit()
}

// The ledger of a job is read from its first kept commit and verified.
func Example() {
	ctx := context.Background()
	store, last := exampleStore()
	reader, err := ledger.Open(ctx, store, "digits", "") // "": sealed files are where the master has put them
	if err != nil {
		log.Fatal(err)
	}
	verifier := taskqueue.NewVerifier()
	for entry, err := range reader.Entries(ctx, last) {
		if err != nil {
			log.Fatal(err) // has the file and the offset of damage
		}
		if err := verifier.Add(entry.Commit, entry.Events); err != nil {
			log.Fatal(err)
		}
	}
	for _, pass := range verifier.Report() {
		fmt.Printf("pass %d: %d of %d tasks counted once, %d redelivered\n", pass.Pass, pass.CountedOnce, pass.Tasks, pass.Redelivered)
	}
	// Output:
	// pass 1: 2 of 2 tasks counted once, 0 redelivered
}
