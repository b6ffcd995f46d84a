package master

import (
	"context"
	"errors"
	"time"

	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

var errJobEnded = errors.New("job has ended")

// jobEnd is the component that ends the term of a job that has ended.
type jobEnd struct {
	linger time.Duration         // how long trainers have to learn the end
	before func(context.Context) // called before the term ends
	ended  *component.Mailbox
}

// Name implements [component.Component].
func (e *jobEnd) Name() string { return "end of the job" }

// Init implements [component.Component].
func (e *jobEnd) Init(context.Context) error { return nil }

// Prepare implements [component.Component].
func (e *jobEnd) Prepare(_ context.Context, t component.Term) error {
	e.ended = t.Effects(taskqueue.OnJobEnded, taskqueue.OnSessionsChanged)
	return nil
}

// Run returns errJobEnded when the job has ended and all sessions have ended, or when the linger has passed. It waits longer for a
// trainer that saves the model.
func (e *jobEnd) Run(ctx context.Context, t component.Term) error {
	clock := t.Clock()
	var deadline time.Time // end of the linger; zero: the job is running
	rest := time.Duration(-1)
	for {
		clock.Wait(ctx, e.ended.Changed(), rest)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e.ended.Take()
		var isOver bool
		var trainers int
		var saving time.Duration
		if err := t.Read(ctx, func(q *taskqueue.Queue) {
			status, _ := q.Status()
			isOver, trainers, saving = status == taskqueue.Ended || status == taskqueue.Failed, q.Trainers(), q.Saving()
		}); err != nil {
			return err
		}
		if !isOver {
			continue
		}
		now := clock.Now()
		if deadline.IsZero() {
			deadline = now.Add(e.linger)
		}
		rest = deadline.Sub(now)
		if rest <= 0 && saving > 0 {
			rest = max(saving, committer.TickEvery) // the job clock may not advance
		}
		if trainers == 0 || rest <= 0 {
			e.before(ctx)
			return errJobEnded
		}
	}
}
