package committer

import (
	"bytes"
	"time"

	"trainmaster/taskqueue"
)

const (
	// ClockLead is how far the job clock runs beyond the last commit.
	ClockLead = 10 * time.Second
	// lingerMax bounds the wait for more callers.
	lingerMax = 2 * time.Millisecond
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

// batcher decides how long to wait for more callers before a commit.
type batcher struct {
	answered int           // callers that the last commit answered
	average  time.Duration // of commits, moving
}

// committed records a commit: the number of callers that it answered, the number of callers that were waiting at its end,
// and its duration.
func (b *batcher) committed(answered, waiting int, took time.Duration) {
	b.answered = answered + waiting
	took = min(took, 2*lingerMax)
	b.average += (took - b.average) / 8
}

// linger returns the number of callers to wait for, and the limit of the wait after the end of the last commit. Callers
// that were just answered are expected again; callers in a long poll are not. If all return within about the duration
// of a commit, one commit for all is faster than two commits for half of them each: master bench queue measures it.
func (b *batcher) linger(arrived int) (target int, limit time.Duration) {
	if arrived >= b.answered || b.answered < 2 {
		return 0, 0
	}
	return b.answered, min(b.average+b.average/2, lingerMax)
}

type outcome int

// The outcomes of a commit.
const (
	outcomeCommitted outcome = iota
	outcomeUnchanged         // nothing happened yet: send the same bytes again
	outcomeOver              // another state is stored: the term ends
)

// classifyOutcome decides an unknown outcome from the result of a linearizable read.
func classifyOutcome(sent []byte, expected int64, found []byte, revision int64) outcome {
	switch {
	case bytes.Equal(sent, found):
		return outcomeCommitted
	case revision == expected:
		//guard:unchanged-state-is-not-committed
		return outcomeUnchanged
	}
	//guard:other-state-ends-term
	return outcomeOver
}
