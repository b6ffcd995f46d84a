package trainer_test

import (
	"errors"
	"strings"
	"testing"

	"trainmaster/dataset"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// Each number of a range is in one task, of the size that the URL states. --chunks-per-task does not apply, and no root is necessary.
func TestTasksOfARange(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 4, Roots: []string{t.TempDir()}})
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), []string{"range://rows?records=10&per-task=4"}); err != nil {
		t.Fatal(err)
	}
	seen := map[int64]int{}
	task := next(t, c, nil)
	for tasks := 1; ; tasks++ {
		ranges, err := c.Ranges(task)
		if err != nil || len(ranges) != 1 || ranges[0].Name != "rows" || ranges[0].Records > 4 {
			t.Fatalf("found %+v, %v, expected one range of at most 4 records of rows", ranges, err)
		}
		for n := range ranges[0].Records {
			seen[ranges[0].First+n]++
		}
		if tasks == 3 {
			break
		}
		task = next(t, c, task)
	}
	for n := range int64(10) {
		if seen[n] != 1 {
			t.Errorf("record %d: found %d times, expected once", n, seen[n])
		}
	}
	if len(seen) != 10 {
		t.Errorf("found %d records, expected 10", len(seen))
	}
}

// F203: a range has no file. The error of a trainer that reads files names the range. A task of files has no ranges.
func TestRecordsOfARangeAreRefused(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), []string{"range://rows?records=10&per-task=4"}); err != nil {
		t.Fatal(err)
	}
	task := next(t, c, nil)
	var failed error
	for _, err := range c.Records(task) {
		failed = err
	}
	if !errors.Is(failed, dataset.ErrNoFile) || !strings.Contains(failed.Error(), "range://rows?records=10&per-task=4") {
		t.Errorf("found %v, expected an error with the URL", failed)
	}
	task.Chunks[0].Index.Layout = 1
	if _, err := c.Ranges(task); err == nil || !strings.Contains(err.Error(), "expected a range, found a file") {
		t.Errorf("a file: found %v", err)
	}
}

// With explicit commits, the numbers begin after the records of committed steps.
func TestRangeTaskBeginsAtItsBase(t *testing.T) {
	config := master.Config{Queue: taskqueue.Options{Passes: 1, ExplicitCommit: true}}
	r := mastertest.Start(t, etcdtest.Store(t), config)
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), []string{"range://rows?records=10&per-task=10"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(within(t), nil); !errors.Is(err, trainer.ErrRolledBack) {
		t.Fatalf("before the step to load is known: got error %v", err)
	}
	m := &model{seen: map[string]int{}, saved: map[uint64]map[string]int{0: {}}}
	m.load(t, c)
	task := next(t, c, nil)
	c.Applied(task, 1, 4)
	ranges, err := c.Ranges(task)
	if want := (trainer.Range{Name: "rows", First: 4, Records: 6}); err != nil || len(ranges) != 1 || ranges[0] != want {
		t.Errorf("found %+v, %v, expected %+v", ranges, err, want)
	}
}
