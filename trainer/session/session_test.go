package session

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

func token(position int) taskqueue.Token {
	return taskqueue.Token{Epoch: 1, Pass: 1, Position: position, Attempt: 1}
}

func finished(i int) taskqueue.Result { return taskqueue.Result{Token: token(i)} }

func gives(position int, commit uint64) *wire.NextReply {
	return &wire.NextReply{Task: taskqueue.Task{Index: position, Token: token(position), Chunks: make([]taskqueue.Chunk, 1)}, Commit: commit, CommitProof: []byte{byte(commit)}}
}

var waits = &wire.NextReply{Task: taskqueue.Task{Index: -1}, Commit: 1}

func newTestSession() *Session {
	return New(&wire.JoinReply{Trainer: wire.Trainer{Ordinal: 3, Incarnation: 9}, JobID: [16]byte{7}})
}

// A request lists the tasks that were held when it was made, reports the earlier finishes and echoes the highest
// commit. Its number grows.
func TestSessionRequests(t *testing.T) {
	s := newTestSession()
	want := func(r *wire.NextRequest, seq uint64, commit uint64, held []taskqueue.Token, finished ...int) {
		t.Helper()
		var positions []int
		for _, f := range r.Finished {
			positions = append(positions, f.Token.Position)
		}
		if commit > 0 && !bytes.Equal(r.SeenProof, []byte{byte(commit)}) {
			t.Errorf("commit %d: got proof %x", commit, r.SeenProof)
		}
		if r.Seq != seq || r.Ack != seq || r.SeenCommit != commit || !reflect.DeepEqual(r.Held, held) || !reflect.DeepEqual(positions, finished) || r.JobID != [16]byte{7} || r.Ordinal != 3 || r.Incarnation != 9 {
			t.Errorf("got %+v, want seq %d, commit %d, held %v, finished %v", r, seq, commit, held, finished)
		}
	}
	want(s.Next(true, taskqueue.Progress{}), 1, 0, nil)
	s.Answered(gives(0, 50))
	want(s.Next(true, taskqueue.Progress{}), 2, 50, []taskqueue.Token{token(0)}) // to prefetch
	s.Answered(gives(1, 40))
	s.Report(finished(0))
	want(s.Next(true, taskqueue.Progress{}), 3, 50, []taskqueue.Token{token(1)}, 0)
	s.Answered(waits)
	s.Report(finished(1))
	want(s.Next(true, taskqueue.Progress{}), 4, 50, []taskqueue.Token{}, 1)
	if s.Answered(waits) != nil {
		t.Error("answer to wait: expected no task")
	}
	want(s.Next(false, taskqueue.Progress{}), 5, 50, []taskqueue.Token{})
}

// An unanswered request is repeated unchanged. Later finishes are in the next request.
func TestSessionRepeats(t *testing.T) {
	s := newTestSession()
	first := s.Next(true, taskqueue.Progress{Records: 1})
	before := *first
	s.Report(finished(5))
	if again := s.Next(false, taskqueue.Progress{Records: 2}); again != first || !reflect.DeepEqual(*again, before) {
		t.Errorf("repeated request: found %+v, expected %+v", again, before)
	}
	s.Answered(waits)
	if next := s.Next(true, taskqueue.Progress{}); len(next.Finished) != 1 || next.Seq != 2 {
		t.Errorf("next request: got %+v", next)
	}
}

func TestSessionReportsUnsentFinishes(t *testing.T) {
	s := newTestSession()
	steps := []struct {
		what   string
		do     func()
		unsaid bool
	}{
		{"nothing is finished", func() {}, false},
		{"asked", func() { s.Next(true, taskqueue.Progress{}) }, false},
		{"finished, while another request is under way", func() { s.Report(finished(0)) }, true},
		{"that request is answered", func() { s.Answered(waits) }, true},
		{"reported, not answered", func() { s.Next(true, taskqueue.Progress{}) }, true},
		{"answered", func() { s.Answered(waits) }, false},
		{"failed", func() { s.Report(taskqueue.Result{Token: token(1), Error: "broken"}) }, true},
		{"said", func() { s.Next(true, taskqueue.Progress{}) }, true},
		{"answered by the end of the job", func() { s.Settled() }, false},
	}
	for _, step := range steps {
		step.do()
		if got := s.Unsaid(); got != step.unsaid {
			t.Errorf("%s: got unsaid %v", step.what, got)
		}
	}
}

// The reason of a failed task is truncated to the size of a message.
func TestSessionBoundsReasons(t *testing.T) {
	s := newTestSession()
	s.Report(taskqueue.Result{Token: token(0), Error: strings.Repeat("x", 1<<20)})
	if n := len(s.Next(true, taskqueue.Progress{}).Finished[0].Error); n != maxReason {
		t.Errorf("reason: found %d bytes", n)
	}
}
