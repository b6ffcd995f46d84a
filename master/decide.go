package master

import (
	"bytes"
	"time"

	"trainmaster/taskqueue"
)

// The committer's decisions: functions of what is known, without clock or socket.

// jobClock is the clock of the queue. It advances with the time that passes, but never
// more than clockLead beyond the last successful commit: a store that cannot commit stops
// it, and with it every deadline.
type jobClock struct {
	now       taskqueue.Clock
	committed taskqueue.Clock
	remainder time.Duration
}

func (c *jobClock) advance(elapsed time.Duration) taskqueue.Clock {
	c.remainder += max(elapsed, 0)
	ms := taskqueue.Clock(c.remainder / time.Millisecond)
	c.remainder %= time.Millisecond
	c.now = min(c.now+ms, c.committed.Add(clockLead))
	return c.now
}

// pace decides how long to wait for more callers before a commit.
type pace struct {
	answered int           // callers that the last commit answered
	average  time.Duration // of commits, moving
}

// committed takes note of a commit: how many callers it answered, how many were waiting
// by then, and how long it took.
func (p *pace) committed(answered, waiting int, took time.Duration) {
	p.answered = answered + waiting
	took = min(took, 2*lingerMax)
	p.average += (took - p.average) / 8
}

// linger returns for how many callers to wait, and until how long after the end of the
// last commit. Callers that were just answered are expected back; those that wait for a
// task to turn up are not. As long as all are back within about the time of a commit, one
// commit for all beats two for a half each: master bench queue shows it.
func (p *pace) linger(arrived int) (target int, limit time.Duration) {
	if arrived >= p.answered || p.answered < 2 {
		return 0, 0
	}
	return p.answered, min(p.average+p.average/2, lingerMax)
}

// outcome is what a commit came to.
type outcome int

const (
	outcomeCommitted outcome = iota
	outcomeAgain             // nothing happened yet: send the same bytes again
	outcomeOver              // the term is over
)

// judge decides after an unknown outcome, from what a linearizable read found.
func judge(sent []byte, expected int64, found []byte, revision int64) outcome {
	switch {
	case bytes.Equal(sent, found):
		return outcomeCommitted
	case revision == expected:
		return outcomeAgain
	}
	return outcomeOver
}
