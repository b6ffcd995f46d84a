package trainer_test

import (
	"context"
	"errors"
	"sync/atomic"
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

// A task that timed out is stopped at its former holder once another trainer has it. The next task of the former holder is not stopped, and
// each task counts once.
func TestTaskThatTimedOutIsStopped(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{Queue: taskqueue.Options{Passes: 1, FirstTimeout: 2 * time.Second, TimeoutMin: 2 * time.Second}})
	r.Register(3)
	b := join(t, "b", trainer.At(r.Addr))
	logger, _ := logtest.NewNullLogger()
	var beats atomic.Int32
	a, err := trainer.Join(within(t), trainer.Config{ID: "a", Locate: trainer.At(r.Addr), Heartbeat: 50 * time.Millisecond, Log: logrus.NewEntry(logger), Answered: func(answer trainer.Answer) {
		if answer.Call == "Heartbeat" {
			beats.Add(1)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	slow := next(t, a, nil)
	mastertest.Eventually(t, "a prefetched task", func() bool {
		tasks, err := r.PendingTasks(t.Context())
		return err == nil && len(tasks) == 2
	})
	stopped, release := a.UntilStopped(within(t), slow)
	defer release()
	again := next(t, b, next(t, b, nil)) // the third task, then the first task after its timeout
	if again.Index != slow.Index || again.Token.Attempt != slow.Token.Attempt+1 {
		t.Fatalf("b: expected the second dispatch of task %d, found task %d, %v", slow.Index, again.Index, again.Token)
	}
	select {
	case <-stopped.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the former holder was not stopped")
	}
	if cause := context.Cause(stopped); !errors.Is(cause, trainer.ErrStopped) {
		t.Errorf("cause of the stop: %v", cause)
	}
	other := next(t, a, nil)
	if other.Token.Position != 1 || other.Token.Attempt != 1 {
		t.Fatalf("a: found %v, expected the task that it had prefetched before the stop", other.Token)
	}
	newer, release := a.UntilStopped(within(t), other)
	defer release()
	seen := beats.Load()
	mastertest.Eventually(t, "further heartbeats", func() bool { return beats.Load() >= seen+3 })
	if newer.Err() != nil {
		t.Errorf("newer task: %v", context.Cause(newer))
	}
}
