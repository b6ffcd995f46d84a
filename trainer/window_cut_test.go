package trainer_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/master/pscontrol"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// joinWindow begins a session with a window.
func joinWindow(t *testing.T, id string, locate trainer.Locator) *trainer.Window {
	t.Helper()
	logger, _ := logtest.NewNullLogger()
	w, err := trainer.JoinWindow(within(t), trainer.Config{ID: id, Locate: locate, Log: logrus.NewEntry(logger), Heartbeat: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// F414: a trainer with a window is quiesced at each boundary that it reaches: between two batches, while it waits for a step, and while it waits for a
// task. Each cut has its position, and all tasks count once.
func TestWindowStopsForCuts(t *testing.T) {
	store := etcdtest.Store(t)
	checkpoints := pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: 50 * time.Millisecond}, CheckpointKeep: 1}
	config := master.Config{Sync: true, Queue: taskqueue.Options{Passes: 2, ExplicitCommit: true, Cuts: true}}
	r := mastertest.StandBy(t, store, config, cutSteps{newSteps()}, checkpoints)
	r.AwaitLeading()
	r.Register(12)
	train := func(id string) error {
		w := joinWindow(t, id, trainer.At(r.Addr))
		version := uint64(0)
		var held []*taskqueue.Task
		used := map[taskqueue.Token]int64{}
		for {
			for len(held) < 2 {
				list, why, err := w.Take(within(t), trainer.Wish{Most: 1, Wait: 10 * time.Second, Now: len(held) > 0})
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				if why == trainer.NeedsCut {
					if err := w.AwaitCut(within(t)); err != nil {
						return err
					}
					continue
				}
				if held = append(held, list...); len(list) == 0 && len(held) > 0 {
					break
				}
			}
			if len(held) == 0 {
				continue
			}
			for included := false; !included; { // a batch of half a task
				committed, in, err := w.Staged(within(t), version, 5)
				if err != nil {
					return err
				}
				included, version = in, max(version, committed)
			}
			task := held[0]
			used[task.Token] += 5
			w.Used(task, used[task.Token])
			w.Used(task, used[task.Token]) // repeated
			if used[task.Token] == 10 {
				held = held[1:]
				w.Finished(task)
			}
			if err := w.Boundary(within(t)); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			time.Sleep(10 * time.Millisecond) // so that cuts come between batches
		}
	}
	ended := make(chan error, 2)
	for _, id := range []string{"a", "b"} {
		go func() { ended <- train(id) }()
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	value, _, err := store.Value(t.Context(), pscontrol.LatestSetKey)
	if err != nil || string(value) == "" || string(value) == "set 1" {
		t.Errorf("expected cuts during the training, found the set %q, %v", value, err)
	}
	for _, p := range mastertest.Verify(t, store) {
		if p.CountedOnce != 12 {
			t.Errorf("pass %d: expected 12 tasks, found %+v", p.Pass, p)
		}
	}
}
