package trainer_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

func joinOfSize(t *testing.T, id string, window int, locate trainer.Locator) *trainer.Window {
	t.Helper()
	logger, _ := logtest.NewNullLogger()
	w, err := trainer.JoinWindow(within(t), trainer.Config{
		ID: id, Locate: locate, Window: window, Heartbeat: 50 * time.Millisecond, Log: logrus.NewEntry(logger), Protocol: protocol,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func take(t *testing.T, w *trainer.Window, most int) []*taskqueue.Task {
	t.Helper()
	tasks, why, err := w.Take(within(t), trainer.Wish{Most: most, Wait: 20 * time.Second})
	if err != nil || len(tasks) == 0 {
		t.Fatalf("expected tasks, found none: %v, %v", why, err)
	}
	return tasks
}

// Two trainers with windows finish their tasks in any order, many at a time, while the masters change. Each task counts once, and none is dispatched
// again.
func TestWindowsCountEachTaskOnce(t *testing.T) {
	overBoth(t, func(t *testing.T) {
		job := etcdtest.NewJob(t)
		start := func() *mastertest.Running {
			return mastertest.Start(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), master.Config{ChunksPerTask: 1, Shuffle: true, Queue: taskqueue.Options{Passes: 3}})
		}
		store := etcdtest.Open(t, etcdtest.Endpoint(t), job)
		r := start()
		if err := r.ReportDataset(t.Context(), files(t, 8)); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		counted := map[string]int{}
		var trainers sync.WaitGroup
		for i, window := range []int{64, 5} {
			w := joinOfSize(t, fmt.Sprint("trainer-", i), window, follow(t, store))
			if w.Size() != window {
				t.Fatalf("expected a window of %d, found %d", window, w.Size())
			}
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			trainers.Go(func() {
				var held []*taskqueue.Task
				for {
					tasks, why, err := w.Take(within(t), trainer.Wish{Most: 1 + rng.IntN(40), Wait: time.Second, Now: len(held) > 0})
					if errors.Is(err, io.EOF) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					if held = append(held, tasks...); len(held) > window {
						t.Errorf("expected at most %d tasks, found %d", window, len(held))
					}
					if len(tasks) > 0 && rng.IntN(3) > 0 && why != trainer.Full {
						continue
					}
					rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
					n := len(held) - rng.IntN(len(held)/4+1)
					mu.Lock()
					for _, task := range held[:n] {
						counted[fmt.Sprint(task.Token.Pass, "/", task.Index)]++
					}
					mu.Unlock()
					w.Finished(held[:n]...)
					held = held[n:]
				}
			})
		}
		mastertest.Eventually(t, "a task is counted", func() bool { o, err := r.Overview(t.Context()); return err == nil && o.Sets[0].Done > 10 })
		if err := r.Stop(); err != nil {
			t.Fatal(err)
		}
		r = start()
		trainers.Wait()
		for _, p := range mastertest.Verify(t, r.Store) {
			if p.CountedOnce != 80 || p.Redelivered != 0 {
				t.Errorf("expected 80 tasks, each dispatched once, found %+v", p)
			}
		}
		for task, n := range counted {
			if n != 1 {
				t.Errorf("task %s: trained %d times", task, n)
			}
		}
	})
}

// 30 finishes at the same time take two requests. The finishes that a request does not report stay in its list of held tasks.
func TestManyFinishesAtOnceAreReported(t *testing.T) {
	overBoth(t, func(t *testing.T) {
		r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1, Queue: taskqueue.Options{Passes: 1}})
		if err := r.ReportDataset(t.Context(), files(t, 5)); err != nil {
			t.Fatal(err)
		}
		w := joinOfSize(t, "a", 40, trainer.At(r.Addr))
		var held []*taskqueue.Task
		for len(held) < 40 {
			held = append(held, take(t, w, 40)...)
		}
		if _, why, err := w.Take(within(t), trainer.Wish{Most: 1, Wait: time.Minute}); why != trainer.Full || err != nil {
			t.Errorf("with a full window: expected an immediate answer, found %v, %v", why, err)
		}
		w.Finished(held[:30]...)
		take(t, w, 10) // the first request asks for tasks, too
		if err := w.Reported(within(t)); err != nil {
			t.Fatal(err)
		}
		if p := mastertest.Verify(t, r.Store)[0]; p.CountedOnce != 30 || p.Redelivered != 0 {
			t.Errorf("expected 30 counted tasks, each dispatched once, found %+v", p)
		}
	})
}

// A trainer is slow and another one is fast: the slow one does not take tasks ahead that it does not need.
func TestSlowTrainerLeavesTasksToOthers(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1, Queue: taskqueue.Options{Passes: 1}})
	if err := r.ReportDataset(t.Context(), files(t, 2)); err != nil {
		t.Fatal(err)
	}
	slow := joinOfSize(t, "slow", 64, trainer.At(r.Addr))
	take(t, slow, 1)
	mastertest.Eventually(t, "one task is requested ahead", func() bool { return len(pendingOf(t, r, "slow")) == 2 })
	fast := joinOfSize(t, "fast", 64, trainer.At(r.Addr))
	for n := 0; n < 18; {
		tasks := take(t, fast, 1)
		n += len(tasks)
		fast.Finished(tasks...)
	}
	if n := len(pendingOf(t, r, "slow")); n != 2 {
		t.Errorf("expected 2 tasks of the slow trainer, found %d", n)
	}
}

// F529: a trainer with a task in hand is drained. Its other task returns immediately, and the task in hand stays until it is finished.
func TestDrainedWindowReturnsOtherTasks(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1, Queue: taskqueue.Options{Passes: 1}})
	if err := r.ReportDataset(t.Context(), files(t, 2)); err != nil {
		t.Fatal(err)
	}
	w := joinOfSize(t, "a", 64, trainer.At(r.Addr))
	tasks := take(t, w, 1)
	mastertest.Eventually(t, "one task is requested ahead", func() bool { return len(pendingOf(t, r, "a")) == 2 })
	if err := r.Drain(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	mastertest.Eventually(t, "the other task is returned", func() bool { return len(pendingOf(t, r, "a")) == 1 })
	if more, why, err := w.Take(t.Context(), trainer.Wish{Most: 1, Wait: time.Minute}); len(more) != 0 || why != trainer.Drained || err != nil {
		t.Errorf("found %d tasks, %v, %v: expected none, since the trainer is drained", len(more), why, err)
	}
	w.Finished(tasks...)
	if err := w.Reported(within(t)); err != nil {
		t.Fatal(err)
	}
	if o, err := r.Overview(t.Context()); err != nil || o.Sets[0].Done != 1 {
		t.Errorf("expected a finished task, found %+v, %v", o, err)
	}
}

// F546: a trainer dies immediately after it has finished a task. The task is done, and no loss is charged to it.
func TestDeadTrainerHasReportedItsFinishes(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1, Queue: taskqueue.Options{Passes: 1}})
	if err := r.ReportDataset(t.Context(), files(t, 2)); err != nil {
		t.Fatal(err)
	}
	w := joinOfSize(t, "victim", 64, trainer.At(r.Addr))
	w.Finished(take(t, w, 1)...)
	if err := w.Abandon(); err != nil {
		t.Fatal(err)
	}
	o, err := r.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := o.Sets[0].Done; n != 1 {
		t.Errorf("expected one finished task, found %d", n)
	}
}

func pendingOf(t *testing.T, r *mastertest.Running, id string) (list []taskqueue.PendingTask) {
	t.Helper()
	pending, err := r.PendingTasks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pending {
		for _, h := range p.Holders {
			if h.Trainer == id {
				list = append(list, p)
			}
		}
	}
	return list
}

// In a job of explicit commits, batches consist of records of several tasks of the window. The trainer dies at any point, and another one continues at the committed
// step: the model has each record of each pass once.
func TestWindowOfExplicitCommits(t *testing.T) {
	overBoth(t, testWindowOfExplicitCommits)
}

func testWindowOfExplicitCommits(t *testing.T) {
	const passes, perTask = 3, 10
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1, Shuffle: true, Queue: taskqueue.Options{Passes: passes, ExplicitCommit: true}})
	if err := r.ReportDataset(t.Context(), files(t, 2)); err != nil {
		t.Fatal(err)
	}
	saved := map[uint64]map[string]int{0: {}}
	rng := rand.New(rand.NewPCG(7, 7))
	type work struct {
		task *taskqueue.Task
		at   int64
	}
	lives := 0
	for over := false; !over; lives++ {
		w := joinOfSize(t, "a", 20, trainer.At(r.Addr))
		place, _, err := w.LastStep(within(t))
		if err == nil && place.Generation != w.Client().Incarnation() {
			place, _, err = w.Rollback(within(t), place.Step, w.Client().Incarnation())
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		step, model := place.Step, maps.Clone(saved[place.Step])
		var window []*work
		commit := func() error {
			saved[step] = maps.Clone(model)
			if err := w.Flushed(within(t), step); err != nil {
				return err
			}
			return w.Commit(within(t), step)
		}
		for batches := rng.IntN(25); batches > 0 || lives > 12; batches-- {
			tasks, why, err := w.Take(within(t), trainer.Wish{Most: 4, Wait: 5 * time.Second, Now: len(window) > 0})
			if over = errors.Is(err, io.EOF); over {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, task := range tasks {
				window = append(window, &work{task, w.Base(task)})
			}
			if why == trainer.NeedsCommit {
				step++
				if err := commit(); err != nil {
					t.Fatal(err)
				}
				continue
			}
			step++
			for range 7 { // a batch of up to 7 pieces of tasks
				if len(window) == 0 {
					break
				}
				i := rng.IntN(len(window))
				one := window[i]
				n := min(int64(1+rng.IntN(6)), perTask-one.at)
				for range n {
					model[fmt.Sprint(one.task.Token.Pass, "/", one.task.Index, "/", one.at)]++
					one.at++
				}
				w.Applied(one.task, step, int(n))
				if one.at == perTask {
					w.Finished(one.task)
					window = append(window[:i], window[i+1:]...)
				}
			}
			if rng.IntN(4) == 0 {
				if err := commit(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !over {
			if err := w.Abandon(); err != nil {
				t.Fatal(err)
			}
		}
	}
	o, err := r.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	model := saved[o.Steps.Step]
	if len(model) != passes*20*perTask {
		t.Errorf("expected %d records in the model, found %d", passes*20*perTask, len(model))
	}
	for record, n := range model {
		if n != 1 {
			t.Errorf("record %s: expected once, found %d times", record, n)
		}
	}
	if lives < 3 {
		t.Errorf("expected several deaths, found %d", lives)
	}
	mastertest.Verify(t, r.Store)
}
