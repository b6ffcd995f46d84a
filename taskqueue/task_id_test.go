package taskqueue

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// A queue finds the token of its number, for any number of passes and attempts, if the task is of the last 8,192 passes and the dispatch
// among the last 4,096.
func TestTaskIDNamesItsToken(t *testing.T) {
	q := datasetQueue(t, 10, Options{})
	s := q.sets[0]
	rapid.Check(t, func(t *rapid.T) {
		s.pass = Pass(rapid.Uint32Range(1, math.MaxUint32).Draw(t, "pass"))
		e := &entry{set: s, position: rapid.IntRange(0, 9).Draw(t, "position"), next: Attempt(rapid.Uint32Range(2, math.MaxUint32).Draw(t, "next"))}
		e.pass = s.pass - Pass(rapid.Uint32Range(0, uint32(min(s.pass-1, 1<<passBits-1))).Draw(t, "passes before"))
		want := q.token(e, e.next-1-Attempt(rapid.Uint32Range(0, uint32(min(e.next-2, 1<<attemptBits-1))).Draw(t, "attempts before")))
		s.byKey = map[liveKey]*entry{{e.pass, e.position}: e}
		id := want.ID()
		if got, ok := q.tokenOf(id); id > 0 && (!ok || got != want) {
			t.Fatalf("number %d of %v: got %v, %v", id, want, got, ok)
		}
		if id < 0 || id == 0 && e.pass&(1<<passBits-1) != 0 {
			t.Fatalf("number %d of %v: expected a positive one", id, want)
		}
	})
}

// Any number of a client names a token, or none, and its finish changes nothing if no task was dispatched.
func TestAnyTaskID(t *testing.T) {
	q := datasetQueue(t, 10, Options{})
	rapid.Check(t, func(t *rapid.T) {
		id := TaskID(rapid.Int64().Filter(func(id int64) bool { return id != 0 }).Draw(t, "id"))
		a := q.Apply(q.Clock(), &PlainAsk{Finished: true, Task: id, Result: Result{Error: rapid.SampledFrom([]string{"", "disk"}).Draw(t, "error")}})
		if a.Err != nil || len(a.Finishes) != 1 || a.Finishes[0] != Stale {
			t.Fatalf("finish of %d: %+v", id, a)
		}
	})
	if q.dirty {
		t.Error("the queue has changed")
	}
}

// A connection with Again gets the task that it holds, until it has finished it.
func TestPlainConnectionGetsItsTaskAgain(t *testing.T) {
	q := datasetQueue(t, 2, Options{Passes: 1})
	ask := &PlainAsk{Connection: "c", Want: true, Again: true}
	first := q.Apply(q.Clock(), ask)
	ask.Trainer, ask.Incarnation = first.Ordinal, first.Incarnation
	if again := q.Apply(q.Clock(), ask); again.Kind != AnswerTask || again.Token != first.Token {
		t.Errorf("asked again: got %+v, expected %v", again, first.Token)
	}
	ask.Finished, ask.Task = true, first.Token.ID()
	next := q.Apply(q.Clock(), ask)
	if next.Kind != AnswerTask || next.Token.Position == first.Token.Position || next.Finishes[0] != Counted {
		t.Errorf("finished: got %+v", next)
	}
	ask.Task = next.Token.ID()
	if end := q.Apply(q.Clock(), ask); end.Kind != AnswerEnded {
		t.Errorf("after the last task: got %+v", end)
	}
}
