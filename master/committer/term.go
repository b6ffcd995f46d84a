package committer

import (
	"context"
	"time"

	"trainmaster/ledger"
	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

var _ component.Term = (*Committer)(nil)

// Number returns the number of the term.
func (c *Committer) Number() int64 { return c.lead.Revision() }

// JobID returns the random id of the job.
func (c *Committer) JobID() [16]byte { return c.jobID }

// Clock returns the clock of the term.
func (c *Committer) Clock() component.Clock { return c.time }

// Roster returns the stored values of the trainers by id. Only a function that Read calls may use it.
func (c *Committer) Roster() map[string][]byte { return c.roster }

// Evaluation returns the stored value of taskqueue.EvaluationKey. Only a function that Read calls may use it.
func (c *Committer) Evaluation() []byte { return c.evaluation }

// Lock returns the writes of the sealer, which compare the lock.
func (c *Committer) Lock() ledger.Lock { return c.lead }

// Progress returns the number of the last commit, and the bytes of ledger entries in this term.
func (c *Committer) Progress() ledger.Progress {
	return ledger.Progress{Commit: c.number.Load(), Bytes: c.ledgerBytes.Load()}
}

// Proven returns the number of the last commit and its proof; the proof is nil before the secret of the job is stored.
func (c *Committer) Proven() (commit uint64, proof []byte) {
	p := c.proven.Load()
	return p.number, p.proof
}

// Table returns the task table of a registered dataset.
func (c *Committer) Table(set int) *taskqueue.Table { return (*c.tables.Load())[set] }

// Counts describes the commits of this term.
type Counts struct {
	Commits, Refused int64
	Refusal          string // why the store refused the last commit; "": it did not
}

// Counts returns the counts of this term.
func (c *Committer) Counts() Counts {
	refusal, _ := c.refusal.Load().(string)
	return Counts{c.counts.commits.Load(), c.counts.refused.Load(), refusal}
}

// Status returns the status of the job and its reason. It must be called after Run has returned.
func (c *Committer) Status() (status taskqueue.Status, reason string) { return c.queue.Status() }

// Await replaces the wait for an answer: await returns when done has a token, and takes it. ctx identifies the caller.
func (c *Committer) Await(await func(ctx context.Context, done <-chan struct{})) { c.await = await }

// Waiting returns the number of requests that the committer has not taken yet.
func (c *Committer) Waiting() int { return c.len() }

// Parked returns the number of requests that are held back. Only a function that Read calls may use it.
func (c *Committer) Parked() int { return len(c.parked) }

// LimitState replaces [MaxStateBytes]. Only a function that Read calls may use it.
func (c *Committer) LimitState(bytes int) { c.limit = bytes }

// Put queues an event without waiting for its answer, which a later Round gives. The event waits as its caller in a master would.
func (c *Committer) Put(ctx context.Context, event taskqueue.Event) (*Pending, error) {
	o := &Pending{ctx: ctx, Request: Request{Event: event}, done: make(chan struct{}, 1)}
	if r, ok := event.(*taskqueue.Request); ok {
		o.Waits, o.until = len(r.Held) == 0, c.time.Now().Add(LongPoll)
	}
	switch event.(type) {
	case *taskqueue.PlainAsk, *taskqueue.StepCommit, *taskqueue.StepFlushed, *taskqueue.LastStep, *taskqueue.CutWatch, *taskqueue.StageGradients:
		o.Waits, o.until = true, c.time.Now().Add(LongPoll)
	}
	o.number = &c.number
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, c.closed
	}
	c.pending = append(c.pending, o) // without a signal: the caller drives the rounds
	return o, nil
}

// Answer returns the answer of a request that was queued by Put, once there is one, and the number of the last commit.
func (o *Pending) Answer() (a taskqueue.Answer, commit uint64, done bool, err error) {
	select {
	case <-o.done:
	default:
		return taskqueue.Answer{}, 0, false, nil
	}
	a = o.answer
	if o.finishes != nil {
		a.Finishes = o.finishes
	}
	return a, o.number.Load(), true, o.err
}

// Linger returns for how many callers to wait before the next round, and how long.
func (c *Committer) Linger() (target int, rest time.Duration) {
	target, limit := c.batcher.linger(c.len())
	return target, limit - c.since(c.written)
}
