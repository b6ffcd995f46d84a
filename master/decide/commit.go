package decide

import (
	"bytes"
	"time"

	"trainmaster/taskqueue"
)

const (
	// ClockLead is how far the job clock runs beyond the last commit.
	ClockLead = 10 * time.Second
	// LingerMax bounds the wait for more callers.
	LingerMax = 2 * time.Millisecond
)

// JobClock is the clock of the queue. It advances with the time that passes, but never
// more than ClockLead beyond the last successful commit: a store that cannot commit stops
// it, and with it every deadline.
type JobClock struct {
	Now       taskqueue.Clock
	Committed taskqueue.Clock // at the last successful commit
	remainder time.Duration
}

// Advance lets time pass.
func (c *JobClock) Advance(elapsed time.Duration) taskqueue.Clock {
	//guard:job-clock-rate
	c.remainder += max(elapsed, 0)
	ms := taskqueue.Clock(c.remainder / time.Millisecond)
	//guard:job-clock-remainder
	c.remainder %= time.Millisecond
	//guard:job-clock-lead-limit
	c.Now = min(c.Now+ms, c.Committed.Add(ClockLead))
	return c.Now
}

// Pace decides how long to wait for more callers before a commit.
type Pace struct {
	answered int           // callers that the last commit answered
	average  time.Duration // of commits, moving
}

// Committed records a commit: the number of callers that it answered, the number of callers that were waiting by then,
// and its duration.
func (p *Pace) Committed(answered, waiting int, took time.Duration) {
	p.answered = answered + waiting
	took = min(took, 2*LingerMax)
	p.average += (took - p.average) / 8
}

// Linger returns the number of callers to wait for, and the limit of the wait after the end of the last commit. Callers
// that were just answered are expected again; callers in a long poll are not. If all return within about the duration
// of a commit, one commit for all is faster than two commits for half of them each: master bench queue measures it.
func (p *Pace) Linger(arrived int) (target int, limit time.Duration) {
	if arrived >= p.answered || p.answered < 2 {
		return 0, 0
	}
	return p.answered, min(p.average+p.average/2, LingerMax)
}

// Outcome is what a commit came to.
type Outcome int

// The outcomes of a commit.
const (
	Committed Outcome = iota
	Again             // nothing happened yet: send the same bytes again
	Over              // another state is stored: the term ends
)

// Judge decides an unknown outcome from the result of a linearizable read.
func Judge(sent []byte, expected int64, found []byte, revision int64) Outcome {
	switch {
	case bytes.Equal(sent, found):
		return Committed
	case revision == expected:
		//guard:unchanged-state-is-not-committed
		return Again
	}
	//guard:other-state-ends-term
	return Over
}
