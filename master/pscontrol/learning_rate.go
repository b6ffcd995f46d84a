package pscontrol

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// learningRates returns the component that sends the committed learning rate to the servers of an asynchronous job: after a change, when
// a server registers, after an error, and after resendEvery. A server that starts reads the committed rate itself. In a synchronous job
// each step has its rate.
func (c *Control) learningRates() component.Component {
	return &part{Control: c, name: "learning rate", on: []taskqueue.EffectKind{taskqueue.OnRateChanged, component.OnServersChanged}, run: sendRates}
}

func sendRates(ctx context.Context, t *term, box *component.Mailbox) error {
	var last taskqueue.RateChange
	var rest time.Duration
	for ; ctx.Err() == nil; t.Clock().Wait(ctx, box.Changed(), rest) {
		for _, e := range box.Take() {
			if rate, ok := e.(taskqueue.RateChanged); ok {
				last = rate.RateChange
			}
		}
		if rest = resendEvery; last.Number == 0 {
			continue
		}
		bounded, cancel := t.within(ctx, stepTimeout)
		err := t.config.Servers.SetLearningRate(bounded, uint64(t.Number()), last)
		cancel()
		if err != nil && ctx.Err() == nil {
			rest = stepRetry
			t.config.Log.WithError(err).WithField("scale", last.Scale).Warn("learning rate not sent to all parameter servers, retrying")
		}
	}
	return context.Cause(ctx)
}

// rateTimeout bounds the read of the learning rate: all servers have the same one, and a hung server must not block a change.
const rateTimeout = 2 * time.Second

// RateScale returns the factor for a learning rate before the schedule: of the rate that the servers were started with.
func (c *Control) RateScale(ctx context.Context, rate float32) (scale float32, err error) {
	ctx, cancel := context.WithTimeout(ctx, rateTimeout)
	defer cancel()
	own, err := c.config.ownRate(ctx)
	if err != nil {
		return 0, err
	}
	return float32(float64(rate) / float64(own)), nil
}

// ownRate returns the learning rate before the schedule that the servers were started with.
func (c *Config) ownRate(ctx context.Context) (rate float32, err error) {
	states, err := c.Servers.States(ctx)
	for _, s := range states {
		if s.LearningRate > 0 {
			return s.LearningRate, nil
		}
	}
	switch {
	case err != nil:
		return 0, err
	case states == nil:
		return 0, ErrNoServers
	}
	return 0, fmt.Errorf("the learning rate of parameter servers is unknown: each %w: repeat the command when training has begun", ErrServerNotReady)
}

// OwnRate returns the component that reports the learning rate of the servers to the queue, if a strategy needs it.
func (c *Control) OwnRate() component.Component {
	return &part{Control: c, name: "learning rate of the strategy", on: []taskqueue.EffectKind{component.OnServersChanged}, run: reportOwnRate}
}

// ownRateEvery is the pause before the servers are asked again: they have a learning rate when a trainer has initialized them.
const ownRateEvery = 100 * time.Millisecond

func reportOwnRate(ctx context.Context, t *term, box *component.Mailbox) error {
	for ctx.Err() == nil {
		awaits, err := read(ctx, t, (*taskqueue.Queue).AwaitsRate)
		if err != nil {
			return err
		}
		rest := time.Duration(-1)
		if awaits {
			rest = ownRateEvery
			bounded, cancel := t.within(ctx, rateTimeout)
			own, err := t.config.ownRate(bounded)
			cancel()
			if err == nil {
				_, err = t.Submit(ctx, &taskqueue.OwnRate{Rate: own})
			}
			if err != nil && ctx.Err() == nil && !errors.Is(err, ErrServerNotReady) {
				t.config.Log.WithError(err).Debug("learning rate of the parameter servers not known, retrying")
			}
		}
		t.Clock().Wait(ctx, box.Changed(), rest)
	}
	return context.Cause(ctx)
}
