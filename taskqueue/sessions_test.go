package taskqueue

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// A thousand trainers a second join and send nothing more, so more sessions expire than one tick can end. A task of a
// trainer that hangs still returns at its deadline.
func TestJoinFloodDelaysNoDeadline(t *testing.T) {
	for _, explicit := range []bool{false, true} {
		q := datasetQueue(t, 3, Options{Passes: 1, FirstTimeout: 5 * time.Second, SessionTTL: time.Second, ExplicitCommit: explicit})
		now := q.Clock()
		j := q.Apply(now, &Join{ID: "hangs"})
		if a := q.Apply(now, &Request{Trainer: j.Ordinal, Incarnation: j.Incarnation, Seq: 1, Ack: 1, Want: true, Epoch: 1}); a.Kind != AnswerTask {
			t.Fatal(a)
		}
		deadline, n := now.Add(5*time.Second), 0
		for now <= deadline {
			for range 2 { // commits in 100 ms
				for range 50 {
					q.Apply(now, &Join{ID: fmt.Sprint("flood-", n)})
					n++
				}
				q.Ready()
			}
			q.Apply(now, &Heartbeat{Trainer: j.Ordinal, Incarnation: j.Incarnation})
			q.Apply(now, &Tick{})
			q.Ready()
			now = now.Add(100 * time.Millisecond)
		}
		if q.Trainers() < 1500 {
			t.Fatalf("explicit %v: %d sessions: expected more than ticks can end", explicit, q.Trainers())
		}
		if p := q.PendingTasks()[0]; p.Failures != 1 || !explicit && len(p.Holders) > 0 {
			t.Errorf("explicit %v: after the deadline: expected a returned task, found %+v", explicit, p)
		}
	}
}

// The keys of a tick that ends the maximum number of sessions, and sets tasks aside, fit one transaction.
func TestTickWritesABoundedNumberOfKeys(t *testing.T) {
	q := datasetQueue(t, 500, Options{Passes: 1, MaxFailures: 1, FirstTimeout: time.Second, SessionTTL: time.Second})
	now := q.Clock()
	for range 2 {
		for i := range 30 {
			var a Answer
			for range maxHeldPlain {
				a = q.Apply(now, &PlainAsk{Trainer: a.Ordinal, Incarnation: a.Incarnation, Connection: fmt.Sprint(now, "-", i), Want: true})
				q.Ready()
			}
		}
		now = now.Add(3 * time.Second)
		for i := range 200 {
			q.Apply(now, &Join{ID: fmt.Sprint(now, "joined-", i)})
			q.Ready()
		}
		now = now.Add(3 * time.Second)
		for range 60 {
			q.Apply(now, &Tick{})
			if n := q.PendingWrites(); n > 100 {
				t.Fatalf("a tick writes %d keys, expected at most 100", n)
			}
			q.Ready()
		}
	}
	if len(q.SetAsideTasks(0)) < 400 {
		t.Errorf("%d tasks set aside, expected that ticks did so with 480", len(q.SetAsideTasks(0)))
	}
}

func TestSessionsBeyondTheLimitAreRefused(t *testing.T) {
	q := datasetQueue(t, 10, Options{Passes: 1, MaxSessions: 3})
	a := q.Apply(1, &Join{ID: "a"})
	b := q.Apply(1, &Join{ID: "b"})
	c := q.Apply(1, &PlainAsk{Connection: "c", Want: true})
	if c.Kind != AnswerTask {
		t.Fatal(c)
	}
	refused := func(what string, ev Event) {
		t.Helper()
		q.Ready()
		if got := q.Apply(1, ev); !errors.Is(got.Err, ErrTooManySessions) || got.Kind == AnswerTask || q.Trainers() != 3 || q.dirty {
			t.Errorf("%s: %+v, %d sessions, expected the error that there are too many", what, got, q.Trainers())
		}
	}
	refused("a trainer", &Join{ID: "d"})
	refused("a connection", &PlainAsk{Connection: "e", Want: true})
	// Existing sessions continue.
	if got := q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 1, Want: true}); got.Kind != AnswerTask {
		t.Errorf("existing session: got %+v", got)
	}
	c.Index = q.Apply(1, &PlainAsk{Trainer: c.Ordinal, Incarnation: c.Incarnation, Connection: "c", Finished: true, Index: c.Index, Result: Result{Token: c.Token}, Want: true}).Index
	if c.Index == 0 {
		t.Error("connection with a session: expected another task")
	}
	// A trainer that joins again replaces its own session. A trainer that leaves makes room.
	if got := q.Apply(1, &Join{ID: "b"}); got.Err != nil || got.Ordinal == b.Ordinal {
		t.Errorf("trainer that joins again: got %+v", got)
	}
	refused("a trainer", &Join{ID: "d"})
	q.Apply(1, &Leave{a.Ordinal, a.Incarnation})
	if got := q.Apply(1, &Join{ID: "d"}); got.Err != nil {
		t.Error(got.Err)
	}
}
