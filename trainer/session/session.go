// Package session has the rules of a joined trainer: which request comes next, what an answer
// means, and when a call is repeated. It is pure: it knows no connection and no clock. The
// client around it carries the requests.
//
// One request is under way at a time; until it is answered it is repeated as it is, to
// whichever master leads. So a master knows a repeat by its number, and a task by the number
// of the request that it answered.
package session

import (
	"slices"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// Session is what a joined trainer knows.
type Session struct {
	who     wire.Trainer
	jobID   [16]byte
	seq     uint64
	commit  uint64            // highest seen
	proof   []byte            // of commit
	held    []taskqueue.Token // not finished, the answer of the next request not among them
	results []taskqueue.Result
	flight  *wire.NextRequest // sent and not answered: repeated as it is
	epoch   uint32            // of explicit commits; 0: not known
}

// New begins a session.
func New(j *wire.JoinReply) *Session { return &Session{who: j.Trainer, jobID: j.JobID} }

// Drop notes that a task is not ours any more.
func (s *Session) Drop(token taskqueue.Token) {
	s.held = slices.DeleteFunc(s.held, func(t taskqueue.Token) bool { return t == token })
}

// Finish records a task as finished, or failed with a reason, for the next request. With explicit
// commits, step applied the last record of the task; otherwise step is 0.
func (s *Session) Finish(token taskqueue.Token, reason string, step uint64) {
	s.Drop(token)
	s.results = append(s.results, taskqueue.Result{Token: token, Error: reason[:min(len(reason), maxReason)], Step: step})
}

// Adopt changes the epoch. It drops the tasks of earlier epochs and their results. No request may be
// under way. It reports whether the epoch changed.
func (s *Session) Adopt(epoch uint32) bool {
	if s.epoch == epoch {
		return false
	}
	s.epoch, s.held, s.results = epoch, nil, nil
	return true
}

// maxReason is more than a master keeps of why a task failed, and fits a message.
const maxReason = 1 << 10

// Next is the request to send now. There is one at a time: until it is answered the same
// one is returned, whatever happened since.
func (s *Session) Next(want bool, progress taskqueue.Progress) *wire.NextRequest {
	if s.flight == nil {
		s.seq++
		//guard:request-acknowledges-answered
		s.flight = &wire.NextRequest{
			Trainer: s.who, Seq: s.seq, Ack: s.seq, Held: slices.Clone(s.held), Finished: s.results, Want: want,
			SeenCommit: s.commit, SeenProof: s.proof, JobID: s.jobID, Progress: progress, Epoch: s.epoch,
		}
		s.results = nil
	}
	return s.flight
}

// Settled ends a request that was answered by an error after its finishes were accepted.
func (s *Session) Settled() { s.flight = nil }

// Unsaid reports whether finishes exist that the master may not have received.
func (s *Session) Unsaid() bool {
	return len(s.results) > 0 || s.flight != nil && len(s.flight.Finished) > 0
}

// Answered takes the reply; it returns the task in it, or nil.
func (s *Session) Answered(r *wire.NextReply) *taskqueue.Task {
	s.flight = nil
	if r.Commit > s.commit {
		s.commit, s.proof = r.Commit, r.CommitProof
	}
	if r.Task.Index < 0 || len(r.Task.Chunks) == 0 {
		return nil
	}
	//guard:held-token-listed
	s.held = append(s.held, r.Task.Token)
	return &r.Task
}
