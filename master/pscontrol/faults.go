package pscontrol

import (
	"context"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

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
		return func(ctx context.Context) error { return t.watchFaults(ctx, c.Status) }, nil
	}}
}

// watchFaults notes the faults of parameter servers for the status, and logs them and the missing servers, until ctx ends.
func (t *term) watchFaults(ctx context.Context, status func(context.Context) Status) error {
	clock := t.Clock()
	var before Faults
	var missing absence
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
		if s := status(ctx); s.Unknown == "" {
			missing.note(t.config.Log, s.Missing)
		}
		clock.Sleep(ctx, faultsEvery)
	}
	return context.Cause(ctx)
}

// absence is which servers are missing, as it was read last and as it was logged.
type absence struct{ read, logged []int }

// note logs the missing servers if two reads in a row found the same ones, and once when no server is missing any more. A restart that
// takes less time is not logged.
func (a *absence) note(log *logrus.Entry, missing []int) {
	switch {
	case len(missing) == 0 && len(a.logged) > 0:
		log.Info("all parameter servers registered")
		a.logged = nil
	//guard:missing-server-logged
	case len(missing) > 0 && slices.Equal(missing, a.read) && !slices.Equal(missing, a.logged):
		log.WithFields(logrus.Fields{"missing": missing, "start": "master pserver --endpoints ..."}).Warn("parameter servers missing: training waits for them")
		a.logged = missing
	}
	a.read = missing
}
