// Package session implements the rules of a joined trainer: the next request, the meaning of an answer, and the errors after which a
// call is repeated. The package is pure: the client around it has the connection and the clock.
//
// One request is in progress at a time. Until it is answered, the client repeats it unchanged, to any leader. A master identifies a
// repetition by the number of the request, and a task by the number of the request that it answered.
package session

import (
	"slices"
	"strings"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// Session is the state of a joined trainer.
type Session struct {
	Accepts taskqueue.Kinds // of tasks; 0: training
	Most    int             // tasks wanted in one answer, of a trainer with a window; 0: it has none

	who        wire.Trainer
	jobID      [16]byte
	seq        uint64
	commit     uint64            // highest seen
	proof      []byte            // of commit
	unfinished []taskqueue.Token // not finished; without the task in the answer to the next request
	results    []taskqueue.Result
	flight     *wire.NextRequest // sent and not answered: repeated unchanged
	epoch      uint32            // of explicit commits; 0: not known
}

// New begins a session.
func New(j *wire.JoinReply) *Session { return &Session{who: j.Trainer, jobID: j.JobID} }

// Drop removes a task that the trainer no longer holds.
func (s *Session) Drop(token taskqueue.Token) {
	s.unfinished = slices.DeleteFunc(s.unfinished, func(t taskqueue.Token) bool { return t == token })
}

// Report records a task as finished, or failed with a reason, for the next request. With explicit
// commits, its step applied the last record of the task; otherwise it is 0.
func (s *Session) Report(r taskqueue.Result) {
	s.Drop(r.Token)
	//guard:reason-is-text
	r.Error = strings.ToValidUTF8(r.Error[:min(len(r.Error), maxReason)], "?") // a message over gRPC has no other bytes
	r.NotFinite = strings.ToValidUTF8(r.NotFinite, "?")
	s.results = append(s.results, r)
}

// Adopt changes the epoch. It drops the tasks of earlier epochs and their results. No request may be
// in progress. It reports whether the epoch changed.
func (s *Session) Adopt(epoch uint32) bool {
	if s.epoch == epoch {
		return false
	}
	s.epoch, s.unfinished, s.results = epoch, nil, nil
	return true
}

// maxFinished is the number of finishes in a request.
const maxFinished = 16

// maxReason is the length of the reason of a failed task in a request. A master stores less.
const maxReason = 1 << 10

// Next returns the request to send. Until it is answered, Next returns the same request, also after further finishes.
func (s *Session) Next(want bool, progress taskqueue.Progress) *wire.NextRequest {
	if s.flight == nil {
		s.seq++
		reported := s.results[:min(len(s.results), maxFinished)]
		held := slices.Clone(s.unfinished)
		for _, later := range s.results[len(reported):] {
			// The master dispatches a task again if the request does not list it.
			//guard:unreported-finish-is-held
			held = append(held, later.Token)
		}
		//guard:request-acknowledges-answered
		s.flight = &wire.NextRequest{
			Trainer: s.who, Seq: s.seq, Ack: s.seq, Held: held, Finished: reported, Want: want, Most: s.Most,
			SeenCommit: s.commit, SeenProof: s.proof, JobID: s.jobID, Progress: progress, Epoch: s.epoch, Accepts: s.Accepts,
		}
		s.results = s.results[len(reported):]
	}
	return s.flight
}

// Outside returns a request that reports one result, outside the order of the other requests: its number is not of the session, and the
// master takes it at any time. It reads no field that changes.
func (s *Session) Outside(r taskqueue.Result, progress taskqueue.Progress) *wire.NextRequest {
	r.Error = strings.ToValidUTF8(r.Error[:min(len(r.Error), maxReason)], "?")
	r.NotFinite = strings.ToValidUTF8(r.NotFinite, "?")
	return &wire.NextRequest{Trainer: s.who, Seq: 1, Finished: []taskqueue.Result{r}, JobID: s.jobID, Progress: progress}
}

// Settled ends a request that was answered by an error after its finishes were accepted.
func (s *Session) Settled() { s.flight = nil }

// Unsaid reports whether the master may lack a finish.
func (s *Session) Unsaid() bool {
	return len(s.results) > 0 || s.flight != nil && len(s.flight.Finished) > 0
}

// Unfinished returns the number of tasks that are received and not reported.
func (s *Session) Unfinished() int { return len(s.unfinished) }

// Answered applies the reply, and returns its first task or nil. Reply.More has the others.
func (s *Session) Answered(r *wire.NextReply) *taskqueue.Task {
	s.flight = nil
	if r.Commit > s.commit {
		s.commit, s.proof = r.Commit, r.CommitProof
	}
	if r.Task.Index < 0 || len(r.Task.Chunks) == 0 {
		return nil
	}
	//guard:held-token-listed
	s.unfinished = append(s.unfinished, r.Task.Token)
	for _, more := range r.More {
		s.unfinished = append(s.unfinished, more.Task.Token)
	}
	return &r.Task
}
