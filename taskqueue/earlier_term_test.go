package taskqueue

import (
	"fmt"
	"testing"
	"time"
)

// Ten thousand plain connections of an earlier term hold one task each. Their tasks return within 20 s of ticks. In
// each of those ticks a connection of the new term receives a task.
func TestTasksOfTenThousandPlainConnectionsReturn(t *testing.T) {
	const connections, bound = 10_000, 20 * time.Second
	q := datasetQueue(t, connections+1000, Options{Passes: 1, FirstTimeout: time.Hour, TimeoutMax: 2 * time.Hour})
	for i := range connections {
		if a := q.Apply(q.Clock(), &PlainAsk{Connection: fmt.Sprint("earlier-", i), Want: true}); a.Kind != AnswerTask {
			t.Fatal(a)
		}
		q.Ready()
	}
	r, err := Restore(q.Snapshot(1, 2), q.encodedRoster(), []*Table{nil}, q.opt)
	if err != nil {
		t.Fatal(err)
	}
	now, began := r.Clock(), r.Clock()
	var own Answer
	for ; r.Trainers() > 1 || now == began; now = now.Add(100 * time.Millisecond) {
		own = r.Apply(now, &PlainAsk{Trainer: own.Ordinal, Incarnation: own.Incarnation, Connection: "new", Want: true, Finished: own.Kind == AnswerTask, Index: own.Index, Result: Result{Token: own.Token}})
		if own.Kind != AnswerTask {
			t.Fatalf("after %v: %+v", now.Sub(began), own)
		}
		r.Apply(now, &Tick{})
		r.Ready()
		if now.Sub(began) > bound {
			t.Fatalf("expected no session after %[2]v, found %[1]d", r.Trainers(), bound)
		}
	}
	for _, p := range r.PendingTasks() {
		if len(p.Holders) > 1 || len(p.Holders) == 1 && p.Holders[0].Trainer != "new" {
			t.Fatalf("task %+v: expected a holder of this term, found a connection of the earlier term", p)
		}
	}
}
