package netrpc_test

import (
	"testing"
	"time"

	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

// F23: a plain connection finishes a task after its timeout. The task counts, and its duration enters the average.
func TestLateFinishOfPlainConnectionIsCounted(t *testing.T) {
	r := serve(t, 2, master.Config{Queue: taskqueue.Options{TimeoutMin: time.Millisecond, FirstTimeout: time.Millisecond}})
	c := dial(t, r.Addr)
	task := take(t, c, taskqueue.Task{})
	mastertest.Eventually(t, "the timeout of the task", func() bool {
		tasks := pending(t, r)
		return len(tasks) == 1 && len(tasks[0].Holders) == 0 && tasks[0].Failures == 1
	})
	next := take(t, c, task)
	o, err := r.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v := o.Sets[0]; v.Done != 1 || v.AverageTask == 0 || next.Index == task.Index {
		t.Errorf("after the late finish of task %d: %+v, then task %d", task.Index, v, next.Index)
	}
}
