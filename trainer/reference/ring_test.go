package reference_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/mastertest"
	"trainmaster/master/rendezvous"
	"trainmaster/master/ring"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

// queueView reads the task queue. It is a component of the master.
type queueView struct {
	term atomic.Pointer[component.Term]
}

func (*queueView) Name() string                                  { return "view" }
func (*queueView) Init(context.Context) error                    { return nil }
func (*queueView) Prepare(context.Context, component.Term) error { return nil }
func (v *queueView) Run(ctx context.Context, t component.Term) error {
	v.term.Store(&t)
	<-ctx.Done()
	return context.Cause(ctx)
}

// tasks returns the tasks that are dispatched or wait to be dispatched again, and the number of trainers that hold one.
func (v *queueView) tasks(t *testing.T) (tasks []taskqueue.PendingTask, holders int) {
	t.Helper()
	if v.term.Load() == nil {
		return nil, 0
	}
	if err := (*v.term.Load()).Read(t.Context(), func(q *taskqueue.Queue) { tasks = q.PendingTasks() }); err != nil {
		t.Fatal(err)
	}
	held := map[string]bool{}
	for _, task := range tasks {
		for _, h := range task.Holders {
			held[h.Trainer] = true
		}
	}
	return tasks, len(held)
}

// ringJob is a job with a ring of n trainers.
type ringJob struct {
	*mastertest.Running
	ring  *ring.Ring
	queue *queueView
	file  string
}

func startRing(t *testing.T, n int) *ringJob {
	t.Helper()
	train, _ := digits(t)
	store := etcdtest.Store(t)
	j := &ringJob{
		ring: ring.New(ring.Config{Rendezvous: rendezvous.Config{Min: n, Max: n}, Store: store}), queue: &queueView{},
		file: writeTable(t, train[:400], 20).TaskChunks(0)[0].Path,
	}
	j.Running = mastertest.Start(t, store, master.Config{
		ChunksPerTask: 1, Components: []component.Component{j.ring, j.queue}, Ring: j.ring, Queue: taskqueue.Options{Passes: 1000},
	})
	return j
}

// train starts a trainer. stop ends it, and waits for its end.
func (j *ringJob) train(t *testing.T, id string) (stop func()) {
	w := &reference.Worker{
		Trainer: trainer.Config{ID: id, Locate: trainer.At(j.Addr), Control: "127.0.0.1:0", Log: quiet()},
		Data:    []string{j.file}, Kind: model.Softmax, RecordDelay: time.Millisecond, Log: quiet(), Ring: &reference.Ring{Listen: "127.0.0.1:0"},
	}
	ctx, cancel := context.WithCancel(within(t))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.Run(ctx); err != nil {
			t.Errorf("trainer %s: %v", id, err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func (j *ringJob) isActive() bool {
	u, _, err := j.ring.Observe()
	return err == nil && u.Ring.Active()
}

// F340: trainers that wait for the ring, because too few members are left, hold no task, and no task is charged. They continue with the next generation.
func TestTrainersThatWaitForTheRingHoldNoTask(t *testing.T) {
	j := startRing(t, 3)
	for _, id := range []string{"a", "b"} {
		j.train(t, id)
	}
	stopC := j.train(t, "c")
	holders := func(want int) func() bool {
		return func() bool {
			_, n := j.queue.tasks(t)
			return n == want
		}
	}
	mastertest.Eventually(t, "a task of each trainer", holders(3))
	stopC()
	mastertest.Eventually(t, "the end of the generation", func() bool { return !j.isActive() })
	mastertest.Eventually(t, "no task of a trainer that waits", holders(0))
	tasks, _ := j.queue.tasks(t)
	for _, task := range tasks {
		if task.Failures != 0 || task.Losses != 0 {
			t.Errorf("task %s: expected no charge, found %d failures and %d losses", task.Token, task.Failures, task.Losses)
		}
	}
	j.train(t, "d")
	mastertest.Eventually(t, "the next generation", j.isActive)
	mastertest.Eventually(t, "a task of each trainer", holders(3))
}

// F340: a trainer that ends in the middle of a task closes the file of the task.
func TestTrainerOfARingClosesItsFiles(t *testing.T) {
	j := startRing(t, 1)
	stop := j.train(t, "a")
	mastertest.Eventually(t, "a task", func() bool { _, n := j.queue.tasks(t); return n == 1 })
	mastertest.Eventually(t, "a reader", isReading)
	stop()
	if isReading() {
		t.Error("the file of the task is open after the end of the trainer")
	}
}

// isReading reports whether a goroutine reads the records of a task.
func isReading() bool {
	stacks := make([]byte, 16<<20)
	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "(*Client).inFileOrder")
}
