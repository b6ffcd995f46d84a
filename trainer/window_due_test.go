package trainer

import (
	"context"
	"testing"
	"time"

	"trainmaster/dataset"
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
	"trainmaster/trainer/session"
)

// F383: a fast trainer makes one request for several tasks and finishes. A finish that nothing else needs a request for waits 100 ms at most.
func TestRequestsOfAWindow(t *testing.T) {
	now := time.Now()
	task := func(i int) taskqueue.Task {
		return taskqueue.Task{Index: i, Token: taskqueue.Token{Position: i, Attempt: 1}, Chunks: make([]taskqueue.Chunk, 1)}
	}
	type state struct {
		taken, ready, handed int // tasks.
		finishes             int
		by                   time.Duration // until reportBy.
		wanted               int
		refused              bool // the last answer had no task.
	}
	for name, c := range map[string]struct {
		state
		want int
		send bool
		wake time.Duration
	}{
		"half left":              {state: state{taken: 20, ready: 10, handed: 1}},
		"less than half left":    {state: state{taken: 20, ready: 9, handed: 1}, want: 11, send: true},
		"slow, one ahead":        {state: state{taken: 1, ready: 1, handed: 1}},
		"slow, none ahead":       {state: state{taken: 1, ready: 0, handed: 1}, want: 1, send: true},
		"finishes, half left":    {state: state{taken: 20, ready: 10, handed: 1, finishes: 3, by: 8 * time.Millisecond}, wake: 8 * time.Millisecond},
		"finishes, less left":    {state: state{taken: 20, ready: 9, handed: 1, finishes: 3, by: 8 * time.Millisecond}, want: 11, send: true},
		"finishes, 100 ms later": {state: state{taken: 20, ready: 10, handed: 1, finishes: 3, by: 0}, send: true},
		"pass ends":              {state: state{taken: 20, ready: 9, handed: 1, finishes: 3, by: 8 * time.Millisecond, refused: true}, wake: 8 * time.Millisecond},
		"later":                  {state: state{taken: 20, ready: 9, handed: 1, finishes: 3, by: 0, refused: true}, want: 11, send: true},
		"one waits":              {state: state{taken: 20, handed: 1, finishes: 3, by: 8 * time.Millisecond, wanted: 1, refused: true}, want: 20, send: true},
		"last finish":            {state: state{taken: 20, finishes: 1, by: 8 * time.Millisecond, wanted: 1}, send: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := session.New(&wire.JoinReply{})
			w := &Window{client: &Client{session: s}, size: MaxWindow, wanted: c.wanted, refused: c.refused, refusal: taskqueue.WaitTask, reportBy: now.Add(c.by)}
			for i := range c.ready + c.handed + c.finishes {
				one := task(i)
				s.Answered(&wire.NextReply{Task: one})
				switch {
				case i < c.ready:
					w.ready = append(w.ready, &one)
				case i < c.ready+c.handed:
					w.handed = append(w.handed, one.Token)
				default:
					s.Report(taskqueue.Result{Token: one.Token})
				}
			}
			for range c.taken {
				w.taken = append(w.taken, now)
			}
			want, send, wake := w.due(now)
			if want != c.want && send || send != c.send || !send && wake.IsZero() != (c.wake == 0) || c.wake > 0 && !wake.Equal(now.Add(c.wake)) {
				t.Errorf("expected %d tasks, %v, in %v; found %d, %v, %v", c.want, c.send, c.wake, want, send, wake.Sub(now))
			}
		})
	}
}

// A caller that waits for the storage of a finish does not wait for further finishes.
func TestAwaitedFinishIsReportedAtOnce(t *testing.T) {
	s := session.New(&wire.JoinReply{})
	w := &Window{client: &Client{session: s}, size: MaxWindow, changed: make(chan struct{}), reportBy: time.Now().Add(time.Hour)}
	w.ctx = t.Context()
	for i := range 3 {
		one := taskqueue.Task{Index: i, Token: taskqueue.Token{Position: i, Attempt: 1}, Chunks: make([]taskqueue.Chunk, 1)}
		s.Answered(&wire.NextReply{Task: one})
		w.ready = append(w.ready, &one)
	}
	s.Report(taskqueue.Result{Token: w.ready[0].Token})
	w.ready = w.ready[1:]
	if _, send, wake := w.due(time.Now()); send || wake.IsZero() {
		t.Fatalf("before: expected a delay, found %v, %v", send, wake)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = w.Reported(ctx) // nothing makes requests
	if _, send, _ := w.due(time.Now()); !send {
		t.Error("expected a request")
	}
}

// F529: an answer arrives after the notice of a drain. Its tasks return, too.
func TestLateAnswerOfADrainedWindowReturns(t *testing.T) {
	c := &Client{session: session.New(&wire.JoinReply{}), drained: make(chan struct{}), stamps: map[taskqueue.Token][]dataset.Stamp{}}
	w := &Window{client: c, size: MaxWindow, changed: make(chan struct{})}
	answer := func(first, n int) {
		var reply wire.NextReply
		for i := first; i < first+n; i++ {
			task := taskqueue.Task{Index: i, Token: taskqueue.Token{Position: i, Attempt: 1}, Chunks: make([]taskqueue.Chunk, 1)}
			if i == first {
				reply.Task = task
			} else {
				reply.More = append(reply.More, wire.FurtherTask{Task: task})
			}
		}
		w.flying = false
		w.accept(true, &reply, nil)
	}
	answer(0, 3)
	w.give(1, time.Now())
	close(c.drained)
	for i, first := range []int{3, 5} {
		if want, send, _ := w.due(time.Now()); !send || want != 0 || len(w.ready) > 0 || c.session.Unfinished() != 1 {
			t.Errorf("answer %d: expected a request with the task in hand alone, found %d tasks wanted, %v, %d ready, %d held", i, want, send, len(w.ready), c.session.Unfinished())
		}
		w.dropped = false // as the request does
		answer(first, 2)
		w.dropIfDraining() // a call of Take comes first
	}
}
