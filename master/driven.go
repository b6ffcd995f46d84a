package master

import (
	"context"
	"time"

	"trainmaster/ledger"
	"trainmaster/master/component"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// Driven is a term whose rounds another one drives: recovery, batches, commits, read-backs
// and answers as in any term, but no goroutine and no clock of its own. A simulator drives
// it in virtual time. It is for one goroutine.
type Driven struct {
	term   *term
	config Config
}

// Drive recovers the state under a lock that is held. When ctx ends, the master is to stop: an
// unknown outcome ends the term then.
func Drive(ctx context.Context, lead store.Leadership, config Config) (*Driven, error) {
	config = config.withDefaults()
	s, err := recoverState(ctx, lead, config, nil, func() {})
	if err != nil {
		return nil, err
	}
	return &Driven{newTerm(newCommitter(s)), config}, nil
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
		o.patient, o.until = len(r.Held) == 0, d.term.Clock().Now().Add(longPoll)
	}
	switch event.(type) {
	case *taskqueue.PlainAsk, *taskqueue.StepCommit, *taskqueue.StepFlushed, *taskqueue.LastStep, *taskqueue.CutWatch, *taskqueue.StageGradients:
		o.patient, o.until = true, d.term.Clock().Now().Add(longPoll)
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
func (d *Driven) ServersChanged() { d.term.committer.post(component.ServersChanged{}) }

// TakeCuts subscribes to the other duties of the leader of a job with Options.Cuts. The returned function takes cuts
// and rolls the job back until ctx or the term ends. It reads from db. await waits for a token in done and takes it; ctx identifies
// the caller.
func (d *Driven) TakeCuts(db store.Store, servers Servers, await func(ctx context.Context, done <-chan struct{})) func(context.Context) error {
	checkpoints := newCheckpointer(d.control(db, servers, await))
	checkpoints.cuts = &rewinding{checkpointer: checkpoints, placed: func() []byte { return nil }} // no blocks move
	checkpoints.subscribe()
	return checkpoints.run
}

// SendSteps subscribes to the committed steps of a synchronous job. The returned function sends them to the parameter servers until
// its context ends. await is as for TakeCuts.
func (d *Driven) SendSteps(servers Servers, await func(ctx context.Context, done <-chan struct{})) func(context.Context) error {
	c := d.control(d.config.Store, servers, await)
	c.subscribe()
	return c.tellShards
}

// control returns the control of other parameter servers in this term.
func (d *Driven) control(db store.Store, servers Servers, await func(ctx context.Context, done <-chan struct{})) *control {
	config := d.config
	config.Store, config.Servers = db, servers
	d.term.committer.await = await
	return newControl(d.term, config)
}

// Proven returns the number of the last commit and its proof.
func (d *Driven) Proven() (commit uint64, proof []byte) {
	p := d.term.committer.proven.Load()
	return p.number, p.proof
}

// LedgerProgress is how far commits, and the events in them, are.
func (d *Driven) LedgerProgress() ledger.Progress { return d.term.Progress() }

// End fails all queued events and rejects new ones.
func (d *Driven) End(cause error) { d.term.committer.end(cause) }

// JobID returns the random id of the job.
func (d *Driven) JobID() [16]byte { return d.term.jobID }

// TickEvery is how often a driver lets time pass.
const TickEvery = tickEvery
