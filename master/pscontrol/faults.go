package pscontrol

import (
	"context"
	"time"

	"trainmaster/master/component"
)

// Faults are the conditions of parameter servers that only an operator can end, each with the index of its server.
type Faults struct {
	Overflow   string // the first value that is not finite, of each server that has one; "": none has
	Unrestored string // why servers wait without parameters: the checkpoint to start from is damaged or missing; "": none waits
}

const faultsEvery = 5 * time.Second

// faults returns the component that reads the faults of the servers for the status and the log.
func (c *Control) faults() component.Component {
	return &part{Control: c, name: "parameter server faults", prepare: func(_ context.Context, t *term) (func(context.Context) error, error) {
		return t.watchFaults, nil
	}}
}

// watchFaults notes the faults of parameter servers for the status, until ctx ends.
func (t *term) watchFaults(ctx context.Context) error {
	clock := t.Clock()
	var before Faults
	for ctx.Err() == nil {
		bounded, cancel := clock.WithTimeout(ctx, faultsEvery)
		now, err := t.config.Servers.Faults(bounded)
		cancel()
		if err == nil || now != (Faults{}) { // else nothing newer is known
			t.faults.Store(&now)
			if now.Overflow != "" && now.Overflow != before.Overflow {
				t.config.Log.WithField("value", now.Overflow).Error("parameters overflowed: checkpoints stopped")
			}
			if now.Unrestored != "" && now.Unrestored != before.Unrestored {
				t.config.Log.WithField("reason", now.Unrestored).Error("parameter servers wait: checkpoint is damaged or missing")
			}
			before = now
		}
		clock.Sleep(ctx, faultsEvery)
	}
	return context.Cause(ctx)
}
