package trainer_test

import (
	"slices"
	"testing"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// The order is stable: a job that continues with a later release trains the rest of a task in the same order.
func TestRecordOrderIsStable(t *testing.T) {
	token := taskqueue.Token{Pass: 2, Position: 3, Dataset: 1, Attempt: 1}
	want := []int{9, 3, 6, 1, 4, 8, 2, 5, 7, 0}
	if got := trainer.RecordOrder(7, token, 10); !slices.Equal(got, want) {
		t.Errorf("found %v, expected %v", got, want)
	}
	again := token
	again.Attempt, again.Epoch = 9, 4
	if got := trainer.RecordOrder(7, again, 10); !slices.Equal(got, want) {
		t.Errorf("another attempt: found %v, expected %v", got, want)
	}
	for what, other := range map[string][]int{
		"seed":     trainer.RecordOrder(8, token, 10),
		"dataset":  trainer.RecordOrder(7, taskqueue.Token{Pass: 2, Position: 3}, 10),
		"pass":     trainer.RecordOrder(7, taskqueue.Token{Pass: 1, Position: 3, Dataset: 1}, 10),
		"position": trainer.RecordOrder(7, taskqueue.Token{Pass: 2, Position: 4, Dataset: 1}, 10),
	} {
		if slices.Equal(other, want) {
			t.Errorf("another %s has the same order", what)
		}
	}
	for n := range 300 {
		order := trainer.RecordOrder(1, token, n)
		slices.Sort(order)
		for i, v := range order {
			if i != v {
				t.Fatalf("%d records: not a permutation: %v", n, order)
			}
		}
	}
}

// Two clients with one seed see the records of each task once, in an order that depends on the pass.
func TestRecordsInShuffledOrder(t *testing.T) { overBoth(t, testRecordsInShuffledOrder) }

func testRecordsInShuffledOrder(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 2, Queue: taskqueue.Options{Passes: 2}})
	c := joinShuffled(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), files(t, 1)); err != nil {
		t.Fatal(err)
	}
	read := func(task *taskqueue.Task) (list []string) {
		for record, err := range c.Records(task) {
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, string(record))
		}
		return list
	}
	orders := map[int][]string{}
	seen := map[string]int{}
	var task *taskqueue.Task
	for range 2 * 5 {
		task = next(t, c, task)
		list := read(task)
		if again := read(task); !slices.Equal(list, again) || len(list) != 20 {
			t.Errorf("task %d: two readings have %q and %q", task.Index, list, again)
		}
		if slices.IsSorted(list) || slices.Equal(list, orders[task.Index]) {
			t.Errorf("task %d of pass %d: found the order %q, expected another one in each pass", task.Index, task.Token.Pass, list)
		}
		orders[task.Index] = list
		for _, record := range list {
			seen[record]++
		}
	}
	if len(seen) != 100 {
		t.Errorf("found %d records, expected 100", len(seen))
	}
	for record, n := range seen {
		if n != 2 {
			t.Errorf("record %s: found %d times in two passes", record, n)
		}
	}
}

// With explicit commits, Base counts in the shuffled order: TestExactResume, shuffled.
func TestExactResumeInShuffledOrder(t *testing.T) {
	overBoth(t, func(t *testing.T) { testExactResumeOf(t, joinShuffled) })
}
