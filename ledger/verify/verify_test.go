package verify_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/ledger"
	"trainmaster/ledger/verify"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// job returns the ledger of a job of two tasks and one pass, by the key of its entries, and the state at its end.
func job() (entries map[string][]byte, keys []string, queue *taskqueue.Queue) {
	entries = map[string][]byte{}
	queue = taskqueue.New("digits", [16]byte{1}, 1, taskqueue.Options{Passes: 1})
	do := func(event taskqueue.Event) taskqueue.Answer {
		answer := queue.Apply(queue.Clock()+1, event)
		if ready := queue.Ready(); len(ready.Entries) > 0 {
			key := taskqueue.LedgerKey(queue.Commit())
			entries[key], keys = ready.Entries, append(keys, key)
		}
		return answer
	}
	table := taskqueue.NewTable(2)
	chunks := []recordio.Index{{Size: 100, Records: 10, Layout: 1}, {Offset: recordio.HeaderSize + 100, Size: 100, Records: 10, Layout: 1}}
	if err := table.Add(taskqueue.File{Path: "/data/train", Size: 240}, chunks); err != nil {
		panic(err)
	}
	do(&taskqueue.Report{Digest: [32]byte{9}, ReportID: "r", Table: table})
	session := do(&taskqueue.Join{ID: "trainer-0"})
	request := &taskqueue.Request{Trainer: session.Ordinal, Incarnation: session.Incarnation, Want: true}
	for request.Seq = 1; request.Seq <= 3; request.Seq++ {
		request.Ack = request.Seq
		request.Finished = []taskqueue.Result{{Token: do(request).Token}}
	}
	return entries, keys, queue
}

// open writes entries to a new job in etcd.
func open(t *testing.T, entries map[string][]byte) (*etcdstore.Store, *ledger.Reader) {
	t.Helper()
	store := etcdtest.Store(t)
	for key, value := range entries {
		if _, err := store.Client().Put(t.Context(), store.Prefix()+key, string(value)); err != nil {
			t.Fatal(err)
		}
	}
	reader, err := ledger.Open(t.Context(), store, "digits", "")
	if err != nil {
		t.Fatal(err)
	}
	return store, reader
}

func TestCheckFindsMissingTask(t *testing.T) {
	entries, keys, queue := job()
	state := queue.Snapshot(0, 0)
	_, reader := open(t, entries)
	reports, err := verify.Check(t.Context(), reader, state)
	if err != nil || len(reports) != 1 || reports[0].CountedOnce != 2 {
		t.Errorf("whole ledger: found %+v, %v, expected 2 tasks counted once", reports, err)
	}
	delete(entries, slices.Max(keys)) // the last finish
	_, reader = open(t, entries)
	if reports, err = verify.Check(t.Context(), reader, state); err == nil || len(reports) == 0 {
		t.Errorf("without the last entry: found %+v, %v, expected an error with the reports", reports, err)
	}
}

func TestCheckOfEmptyLedger(t *testing.T) {
	_, _, queue := job()
	_, reader := open(t, nil)
	if _, err := verify.Check(t.Context(), reader, queue.Snapshot(0, 0)); !errors.Is(err, verify.ErrNoEntries) {
		t.Errorf("found %v, expected ErrNoEntries", err)
	}
}

func TestTraceNamesTrainerOfRecord(t *testing.T) {
	entries, _, queue := job()
	_, reader := open(t, entries)
	trace, err := verify.FindRecord(queue, "/data/train", 15)
	if err != nil || trace.Chunk != 1 {
		t.Fatalf("found %+v, %v, expected chunk 1", trace, err)
	}
	if err := trace.Read(t.Context(), queue, reader, queue.Snapshot(0, 0)); err != nil {
		t.Fatal(err)
	}
	if len(trace.Passes) != 1 || trace.Passes[0].Outcome != "counted" || trace.Passes[0].Trainer != "trainer-0" {
		t.Errorf("found %+v, expected one pass counted by trainer-0", trace.Passes)
	}
	if _, err := verify.FindRecord(queue, "/data/other", 0); err == nil || !strings.Contains(err.Error(), "expected a file of the dataset") {
		t.Errorf("other file: found %v", err)
	}
}
