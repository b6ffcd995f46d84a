package master

import (
	"context"
	"time"

	"trainmaster/ledger"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// Time is the clock that a term goes by. Now must never go back.
type Time interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration)
	// Wait returns when wake has a token, which it takes, when ctx ends, or after d. It has no time limit if d is negative.
	Wait(ctx context.Context, wake <-chan struct{}, d time.Duration)
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// machineTime is the machine's monotonic clock.
type machineTime struct{}

func (machineTime) Now() time.Time                             { return time.Now() }
func (machineTime) Sleep(ctx context.Context, d time.Duration) { pause(ctx, d) }
func (machineTime) Wait(ctx context.Context, wake <-chan struct{}, d time.Duration) {
	var late <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-ctx.Done():
	case <-wake:
	case <-late:
	}
}
func (machineTime) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

// Driven is a term whose rounds another one drives: recovery, batches, commits, read-backs
// and answers as in any term, but no goroutine and no clock of its own. A simulator drives
// it in virtual time. It is for one goroutine.
type Driven struct{ term *term }

// Drive recovers the state under a lock that is held. When ctx ends, the master is to stop: an
// unknown outcome ends the term then.
func Drive(ctx context.Context, lead store.Leadership, config Config) (*Driven, error) {
	config = config.withDefaults()
	s, err := recoverState(ctx, lead, config, nil, func() {})
	if err != nil {
		return nil, err
	}
	return &Driven{newTerm(config, newCommitter(s))}, nil
}

// Errand is an event queued in a driven term.
type Errand struct {
	term *term
	op   *op
}

// Put hands an event over. Its answer stands after a later round.
func (d *Driven) Put(ctx context.Context, event taskqueue.Event) (*Errand, error) {
	o := &op{ctx: ctx, request: request{event: event}, done: make(chan struct{}, 1)}
	if r, ok := event.(*taskqueue.Request); ok {
		o.patient, o.until = len(r.Held) == 0, d.term.committer.time.Now().Add(longPoll)
	}
	switch event.(type) {
	case *taskqueue.PlainAsk, *taskqueue.StepCommit, *taskqueue.StepFlushed, *taskqueue.LastStep, *taskqueue.CutWatch, *taskqueue.StageGradients:
		o.patient, o.until = true, d.term.committer.time.Now().Add(longPoll)
	}
	return d.put(o)
}

func (d *Driven) put(o *op) (*Errand, error) {
	if err := d.term.committer.put(o); err != nil {
		return nil, err
	}
	return &Errand{d.term, o}, nil
}

// Answer returns the answer, once there is one, and the number of the last commit.
func (e *Errand) Answer() (a taskqueue.Answer, commit uint64, done bool, err error) {
	select {
	case <-e.op.done:
	default:
		return taskqueue.Answer{}, 0, false, nil
	}
	a = e.op.answer
	if e.op.finishes != nil {
		a.Finishes = e.op.finishes
	}
	return a, e.term.committer.number.Load(), true, e.op.err
}

// Linger returns for how many callers to wait before the next round, and how long.
func (d *Driven) Linger() (target int, rest time.Duration) {
	c := d.term.committer
	target, limit := c.pace.Linger(c.len())
	return target, limit - c.since(c.written)
}

// Round commits all queued events. With tick, it also advances the job clock. An error ends the term.
func (d *Driven) Round(ctx context.Context, tick bool) error {
	return d.term.committer.round(ctx, tick)
}

// ServersChanged reports a change of the registry of parameter servers.
func (d *Driven) ServersChanged() { d.term.committer.post(serversChanged{}) }

// TakeCuts subscribes to the other duties of the leader of a job with Options.Cuts. The returned function takes cuts
// and rolls the job back until ctx or the term ends. It reads from db. await waits for a token in done and takes it; ctx identifies
// the caller.
func (d *Driven) TakeCuts(db store.Store, servers Servers, await func(ctx context.Context, done <-chan struct{})) func(context.Context) error {
	checkpoints := newCheckpointer(d.beside(db, servers, await), newTurn())
	checkpoints.cuts = &rewinding{checkpointer: checkpoints, placed: func() []byte { return nil }} // no blocks move
	checkpoints.subscribe()
	return checkpoints.run
}

// SendSteps subscribes to the committed steps of a synchronous job. The returned function sends them to the parameter servers until
// its context ends. await is as for TakeCuts.
func (d *Driven) SendSteps(servers Servers, await func(ctx context.Context, done <-chan struct{})) func(context.Context) error {
	t := d.beside(d.term.config.Store, servers, await)
	steps := t.committer.subscribe(taskqueue.OnStepCommitted, onServersChanged)
	return func(ctx context.Context) error { return t.tellShards(ctx, steps, newTurn()) }
}

// beside returns the term as a component with its own store and servers uses it.
func (d *Driven) beside(db store.Store, servers Servers, await func(ctx context.Context, done <-chan struct{})) *term {
	config := d.term.config
	config.Store, config.Servers = db, servers
	d.term.committer.await = await
	return newTerm(config, d.term.committer)
}

// Proven returns the number of the last commit and its proof.
func (d *Driven) Proven() (commit uint64, proof []byte) {
	p := d.term.committer.proven.Load()
	return p.number, p.proof
}

// LedgerProgress is how far commits, and the events in them, are.
func (d *Driven) LedgerProgress() ledger.Progress {
	c := d.term.committer
	return ledger.Progress{Commit: c.number.Load(), Bytes: c.ledgerBytes.Load()}
}

// End fails all queued events and rejects new ones.
func (d *Driven) End(cause error) { d.term.committer.end(cause) }

// JobID returns the random id of the job.
func (d *Driven) JobID() [16]byte { return d.term.jobID }

// TickEvery is how often a driver lets time pass.
const TickEvery = tickEvery
