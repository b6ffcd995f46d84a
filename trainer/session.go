package trainer

import (
	"slices"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// session is what a joined trainer knows, and its rules: which request comes next and what
// an answer means. It is pure; Client carries the requests.
type session struct {
	who     wire.Trainer
	jobID   [16]byte
	seq     uint64
	commit  uint64            // highest seen
	held    []taskqueue.Token // not finished, the answer of the next request not among them
	results []taskqueue.Result
	flight  *wire.NextRequest // sent and not answered: repeated as it is
}

func newSession(j *wire.JoinReply) *session { return &session{who: j.Trainer, jobID: j.JobID} }

// drop notes that a task is not ours any more.
func (s *session) drop(token taskqueue.Token) {
	s.held = slices.DeleteFunc(s.held, func(t taskqueue.Token) bool { return t == token })
}

// finish notes a task as finished, or failed with a reason, for the next request.
func (s *session) finish(token taskqueue.Token, reason string) {
	s.drop(token)
	s.results = append(s.results, taskqueue.Result{Token: token, Error: reason[:min(len(reason), maxReason)]})
}

// maxReason is more than a master keeps of why a task failed, and fits a message.
const maxReason = 1 << 10

// next is the request to send now. There is one at a time: until it is answered the same
// one is returned, whatever happened since.
func (s *session) next(want bool, progress taskqueue.Progress) *wire.NextRequest {
	if s.flight == nil {
		s.seq++
		s.flight = &wire.NextRequest{
			Trainer: s.who, Seq: s.seq, Ack: s.seq, Held: slices.Clone(s.held), Finished: s.results, Want: want,
			SeenCommit: s.commit, JobID: s.jobID, Progress: progress,
		}
		s.results = nil
	}
	return s.flight
}

// settled says that the request under way was answered by an error, after what it reports
// as finished was taken.
func (s *session) settled() { s.flight = nil }

// unsaid reports whether the master may not know yet of all that is finished.
func (s *session) unsaid() bool {
	return len(s.results) > 0 || s.flight != nil && len(s.flight.Finished) > 0
}

// answered takes the reply; it returns the task in it, or nil.
func (s *session) answered(r *wire.NextReply) *taskqueue.Task {
	s.flight = nil
	s.commit = max(s.commit, r.Commit)
	if r.Task.Index < 0 || len(r.Task.Chunks) == 0 {
		return nil
	}
	s.held = append(s.held, r.Task.Token)
	return &r.Task
}
