package trainer_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"sync"
	"testing"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// model has the trained records of a ring with their counts, and its saved steps.
type model struct {
	step   uint64
	seen   map[string]int
	saved  map[uint64]map[string]int
	latest uint64
}

// apply runs one step in which a member applies the next records of its task, at most n. It reports whether the task
// has no more records.
func (m *model) apply(t *testing.T, c *trainer.Client, task *taskqueue.Task, n int) bool {
	t.Helper()
	m.step++
	took := 0
	through := true
	for record, err := range c.Records(task) {
		if err != nil {
			t.Fatal(err)
		}
		if took == n {
			through = false
			break
		}
		m.seen[string(record)]++
		took++
	}
	c.Applied(task, m.step, took)
	return through
}

// save saves a step with all members.
func (m *model) save(t *testing.T, members ...*trainer.Client) {
	t.Helper()
	m.saved[m.step] = maps.Clone(m.seen)
	var wg sync.WaitGroup
	for i, c := range members {
		p := trainer.Checkpoint{Step: m.step, Save: func(context.Context) error { return nil }}
		if i == 0 {
			p.Publish = func(context.Context) error { m.latest = m.step; return nil }
		}
		wg.Go(func() {
			if err := c.Checkpoint(within(t), p); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func (m *model) load(t *testing.T, c *trainer.Client) {
	t.Helper()
	place, err := c.LastStep(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if place.Step != m.latest {
		t.Fatalf("step to load: expected %[2]d, found %[1]d", place.Step, m.latest)
	}
	m.step, m.seen = place.Step, maps.Clone(m.saved[place.Step])
}

// A member fails during a task, and a master between two calls. The ring continues from the committed step, and each
// record is in the model once.
func TestExactResume(t *testing.T) { overBoth(t, testExactResume) }

func testExactResume(t *testing.T) { testExactResumeOf(t, join) }

// testExactResumeOf is the test with trainers that join makes.
func testExactResumeOf(t *testing.T, join func(*testing.T, string, trainer.Locator) *trainer.Client) {
	job := etcdtest.NewJob(t)
	config := master.Config{ChunksPerTask: 1, Queue: taskqueue.Options{Passes: 1, ExplicitCommit: true}}
	start := func() *mastertest.Running {
		return mastertest.Start(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), config)
	}
	store := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	r := start()
	a, b := join(t, "a", follow(t, store)), join(t, "b", follow(t, store))
	if err := a.ReportDataset(within(t), files(t, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Next(within(t), nil); !errors.Is(err, trainer.ErrRolledBack) {
		t.Fatalf("before the step to load is known: got error %v", err)
	}
	m := &model{seen: map[string]int{}, saved: map[uint64]map[string]int{0: {}}}
	m.load(t, a)
	m.load(t, b)
	ofA, ofB := next(t, a, nil), next(t, b, nil)
	m.apply(t, a, ofA, 7)
	m.apply(t, b, ofB, 10)
	ofB = next(t, b, ofB)
	m.apply(t, b, ofB, 3)
	if err := a.Flushed(within(t), m.step); err != nil { // repeated by save, for the next master
		t.Fatal(err)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	r = start()
	m.save(t, b, a)
	m.apply(t, a, ofA, 10)
	ofA = next(t, a, ofA)
	m.apply(t, a, ofA, 10)
	if err := b.Close(); err != nil { // while it holds a task
		t.Fatal(err)
	}
	for {
		if ofA, _ = a.Next(within(t), ofA); ofA == nil {
			break
		}
	}
	if _, err := a.Next(within(t), nil); !errors.Is(err, trainer.ErrRollbackFirst) {
		t.Fatalf("after the loss of a member: got error %v", err)
	}
	m.load(t, a)
	if _, err := a.Rollback(within(t), m.step, 1); err != nil {
		t.Fatal(err)
	}
	b = join(t, "b", follow(t, store))
	m.load(t, b)
	began := map[int64]bool{}
	var done *taskqueue.Task
	for {
		task, err := a.Next(within(t), done)
		if errors.Is(err, io.EOF) {
			break
		}
		if done = nil; errors.Is(err, trainer.ErrCommitFirst) {
			m.save(t, a, b)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		began[a.Base(task)] = true
		for !m.apply(t, a, task, 4) {
		}
		done = task
	}
	if !began[7] || !began[3] {
		t.Errorf("tasks began at records %v: expected 3 and 7 among them", began)
	}
	if len(m.saved[m.latest]) != 100 {
		t.Errorf("last saved step: expected 100 records, found %d", len(m.saved[m.latest]))
	}
	for record, n := range m.saved[m.latest] {
		if n != 1 {
			t.Errorf("record %s: expected it once in the model, found it %d times", record, n)
		}
	}
	_, err := b.Next(within(t), nil)
	if !errors.Is(err, io.EOF) {
		t.Errorf("other member: got error %v", err)
	}
	if err := errors.Join(a.Close(), b.Close(), r.Wait()); err != nil {
		t.Error(err)
	}
	if reports := mastertest.Verify(t, store); len(reports) != 1 || reports[0].CountedOnce != 10 || reports[0].CountedTwice+reports[0].Missing > 0 {
		t.Errorf("ledger: %+v", reports)
	}
}

// A job without explicit commits refuses the calls of explicit commits.
func TestNoExplicitCommits(t *testing.T) { overBoth(t, testNoExplicitCommits) }

func testNoExplicitCommits(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	c := join(t, "a", trainer.At(r.Addr))
	_, err := c.LastStep(within(t))
	_, err2 := c.Rollback(within(t), 0, 1)
	for _, err := range []error{err, err2, c.Flushed(within(t), 1), c.Commit(within(t), 1)} {
		if !errors.Is(err, trainer.ErrNotExplicit) {
			t.Errorf("found %v", err)
		}
	}
}
