package pscontrol

import (
	"context"
	"time"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

const (
	stepRetry   = 500 * time.Millisecond
	stepTimeout = 10 * time.Second
)

// Steps returns the component that sends the newest committed step to the parameter servers, and again when a server registers, after
// an error, and after resendEvery. Servers that have the step ignore it.
func (c *Control) Steps() component.Component {
	return &part{Control: c, name: "step broadcast", on: []taskqueue.EffectKind{taskqueue.OnStepCommitted, component.OnServersChanged}, run: broadcastSteps}
}

func broadcastSteps(ctx context.Context, t *term, box *component.Mailbox) error {
	var last taskqueue.Step
	rest := time.Duration(0)
	for ; ctx.Err() == nil; t.Clock().Wait(ctx, box.Changed(), rest) {
		for _, e := range box.Take() {
			if step, ok := e.(taskqueue.StepCommitted); ok {
				last = step.Step
			}
		}
		rest = resendEvery
		if last.Version == 0 {
			continue
		}
		if err := t.broadcast(ctx, last); err != nil && ctx.Err() == nil {
			rest = stepRetry
			t.config.Log.WithError(err).WithField("version", last.Version).Warn("step not sent to all parameter servers, retrying")
		}
	}
	return context.Cause(ctx)
}

// broadcast sends a step to the servers when the gate is free.
func (t *term) broadcast(ctx context.Context, step taskqueue.Step) error {
	if err := t.gate.AcquireOn(ctx, t.Clock()); err != nil {
		return err
	}
	defer t.gate.Release()
	bounded, cancel := t.within(ctx, stepTimeout)
	defer cancel()
	return t.config.Servers.CommitStep(bounded, step)
}

// closeGate waits until every server has the last committed step. No step is sent until the gate is released. Steps can be committed
// meanwhile, and trainers can receive them; they are sent afterwards.
func (t *term) closeGate(ctx context.Context) error {
	if err := t.gate.AcquireOn(ctx, t.Clock()); err != nil {
		return err
	}
	var last taskqueue.Step
	err := t.Read(ctx, func(q *taskqueue.Queue) { last, _ = q.SyncStep() })
	if err == nil && last.Version > 0 {
		err = t.config.Servers.CommitStep(ctx, last)
	}
	if err != nil {
		t.gate.Release()
	}
	return err
}
