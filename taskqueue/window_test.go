package taskqueue

import (
	"testing"
	"time"
)

// windowed returns a queue with a trainer that has a window.
func windowed(t *testing.T, tasks, window int, opt Options) (*Queue, Answer) {
	t.Helper()
	q := datasetQueue(t, tasks, opt)
	a := q.Apply(1, &Join{ID: "a", Window: window})
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	return q, a
}

// want requests tasks.
func want(q *Queue, s Answer, seq uint64, most int, held ...Token) []Token {
	a := q.Apply(q.Clock(), &Request{Trainer: s.Ordinal, Incarnation: s.Incarnation, Seq: seq, Ack: seq, Held: held, Want: true, Most: most})
	if a.Kind != AnswerTask {
		return nil
	}
	tokens := []Token{a.Token}
	for _, more := range a.More {
		tokens = append(tokens, more.Token)
	}
	return tokens
}

// An answer has up to 16 tasks, and the session holds as many as its window. A repetition has the same tasks.
func TestWindowBoundsTheHeldTasks(t *testing.T) {
	q, s := windowed(t, 100, 40, Options{Passes: 1})
	if s.Window != 40 {
		t.Fatalf("expected a window of 40, found %d", s.Window)
	}
	var held []Token
	for i, n := range []int{16, 16, 8} {
		got := want(q, s, uint64(i+1), 64, held...)
		if len(got) != n {
			t.Fatalf("request %d: expected %d tasks, found %d", i+1, n, len(got))
		}
		again := want(q, s, uint64(i+1), 64, held...)
		if len(again) != n || again[n-1] != got[n-1] {
			t.Fatalf("repeated request %d: expected the same tasks, found %v", i+1, again)
		}
		held = append(held, got...)
	}
	if a := q.Apply(q.Clock(), &Request{Trainer: s.Ordinal, Incarnation: s.Incarnation, Seq: 4, Ack: 4, Held: held, Want: true}); a.Err == nil {
		t.Errorf("expected a refusal with a full window, found %+v", a)
	}
	running := 0
	for _, p := range q.PendingTasks() {
		if !p.Holders[0].Prefetched {
			running++
		}
	}
	if running != 1 {
		t.Errorf("expected the clock of one task to run, found %d", running)
	}
	if s := q.Apply(1, &Join{ID: "b", Window: 1000}); s.Window != MaxWindow {
		t.Errorf("expected at most %d, found %d", MaxWindow, s.Window)
	}
	if s := q.Apply(1, &Join{ID: "c"}); s.Window != MinWindow {
		t.Errorf("expected %d, found %d", MinWindow, s.Window)
	}
}

// A lost trainer with a full window writes few keys: its tasks are in the state and the ledger. One task is charged.
func TestLostWindowWritesFewKeys(t *testing.T) {
	q, s := windowed(t, 100, 64, Options{Passes: 1})
	first := want(q, s, 1, 1)
	q.Apply(1, &Request{Trainer: s.Ordinal, Incarnation: s.Incarnation, Seq: 2, Ack: 2, Finished: []Result{{Token: first[0]}}})
	var held []Token
	for seq := uint64(3); len(held) < 64; seq++ {
		held = append(held, want(q, s, seq, 64, held...)...)
	}
	q.Ready()
	q.Apply(q.Clock().Add(time.Minute), &Tick{})
	ready := q.Ready()
	if n := len(ready.Writes); n > 2 {
		t.Errorf("expected at most 2 keys, found %d", n)
	}
	losses, retries := 0, 0
	for _, p := range q.PendingTasks() {
		losses += p.Losses
		if len(p.Holders) == 0 {
			retries++
		}
	}
	if losses != 1 || retries != 64 {
		t.Errorf("expected 64 returned tasks with one loss, found %d with %d", retries, losses)
	}
}

// With losses ignored, one timeout returns the window of a lost trainer, and is charged to the running task alone.
func TestLostWindowWaitsForOneTimeout(t *testing.T) {
	q, s := windowed(t, 100, 64, Options{Passes: 1, LossesIgnored: true})
	var held []Token
	for seq := uint64(1); len(held) < 64; seq++ {
		held = append(held, want(q, s, seq, 64, held...)...)
	}
	q.Apply(q.Clock().Add(time.Minute), &Tick{})
	tasks := q.PendingTasks()
	if len(tasks) != 64 || len(tasks[0].Holders) != 1 {
		t.Fatalf("expected 64 tasks of the lost trainer before the timeout, found %+v", tasks)
	}
	q.Ready()
	q.Apply(q.Clock().Add(10*time.Minute), &Tick{})
	if n := len(q.Ready().Writes); n > 2 {
		t.Errorf("expected at most 2 keys, found %d", n)
	}
	failures, retries := 0, 0
	for _, p := range q.PendingTasks() {
		failures += p.Failures
		if len(p.Holders) == 0 {
			retries++
		}
	}
	if failures != 1 || retries != 64 {
		t.Errorf("expected 64 returned tasks with one failure, found %d with %d", retries, failures)
	}
}

// After a failover, the tasks of a window are in the order of their requests: the clock of the earliest request runs next.
func TestRestoredWindowHasTheOrderOfItsRequests(t *testing.T) {
	q, s := windowed(t, 20, 10, Options{Passes: 1})
	other := q.Apply(1, &Join{ID: "b"})
	first := want(q, other, 1, 1)[0] // position 0 goes back, and is the last that a gets
	a := want(q, s, 1, 3)
	q.Apply(1, &Leave{other.Ordinal, other.Incarnation})
	a = append(a, want(q, s, 2, 1, a...)...)
	if a[3].Position != first.Position {
		t.Fatalf("expected the returned task, found %v", a)
	}
	q, err := Restore(q.Snapshot(1, 2), q.encodedRoster(), []*Table{nil}, Options{Passes: 1})
	if err != nil {
		t.Fatal(err)
	}
	q.Apply(q.Clock(), &Request{Trainer: s.Ordinal, Incarnation: s.Incarnation, Seq: 3, Ack: 3, Held: a[1:], Finished: []Result{{Token: a[0]}}})
	for _, task := range q.PendingTasks() {
		if runs := !task.Holders[0].Prefetched; runs != (task.Token.Position == a[1].Position) {
			t.Errorf("expected the clock of %v to run, found %+v", a[1], task)
		}
	}
}

// Tasks of many chunks are answered one at a time: a message has room for one.
func TestAnswerOfLargeTasksHasOneTask(t *testing.T) {
	const chunksPerTask = maxAnsweredChunks/2 + 1
	table := tableOf(t, 4*chunksPerTask)
	table.Group(chunksPerTask)
	q := New("j", [16]byte{1}, 1, Options{Passes: 1})
	if a := q.Apply(1, &Report{ReportID: "r", Table: table, Parts: 1}); a.Err != nil {
		t.Fatal(a.Err)
	}
	s := q.Apply(1, &Join{ID: "a", Window: 64})
	if got := want(q, s, 1, 16); len(got) != 1 {
		t.Errorf("expected one task, found %d", len(got))
	}
}

// The bound holds for tasks of several datasets, whichever is dispatched next.
func TestAnswerOfSeveralDatasetsFitsAMessage(t *testing.T) {
	q := New("j", [16]byte{1}, 1, Options{Passes: 1})
	for i, chunksPerTask := range []int{1, 600} {
		table := tableOf(t, 10*chunksPerTask)
		table.Group(chunksPerTask)
		name := string(rune('a' + i))
		if a := q.Apply(1, &Report{SetSpec: SetSpec{Name: name}, ReportID: name, Digest: [32]byte{byte(i + 1)}, Table: table, Parts: 1}); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	s := q.Apply(1, &Join{ID: "a", Window: 64})
	for seq := uint64(1); seq < 4; seq++ {
		a := q.Apply(q.Clock(), &Request{Trainer: s.Ordinal, Incarnation: s.Incarnation, Seq: seq, Ack: seq, Want: true, Most: MaxAnswered})
		chunks := q.sets[a.Set].chunksPerTask
		for _, more := range a.More {
			chunks += q.sets[more.Set].chunksPerTask
		}
		if chunks > maxAnsweredChunks {
			t.Errorf("request %d: expected at most %d chunks, found %d in %d tasks", seq, maxAnsweredChunks, chunks, 1+len(a.More))
		}
	}
}
