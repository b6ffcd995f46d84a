package pscontrol

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// Faults are the conditions of parameter servers that only an operator can end, each with the index of its server. A fault that does
// not exist is "".
type Faults struct {
	Overflow   string // the first value that is not finite, of each server that has one
	Unrestored string // why servers wait without parameters: the checkpoint to start from is damaged or missing
	StageRoom  string // why no synchronous step can be complete. The term adds it to the answer of the servers
}

const faultsEvery = 5 * time.Second

// faults returns the component that reads the faults of the servers for the status and the log.
func (c *Control) faults() component.Component {
	return &part{Control: c, name: "parameter server faults", prepare: func(_ context.Context, t *term) (func(context.Context) error, error) {
		return func(ctx context.Context) error { return t.watchFaults(ctx, c.Status) }, nil
	}}
}

// watchFaults notes the faults of parameter servers for the status, and logs new ones and the missing servers, until ctx ends.
func (t *term) watchFaults(ctx context.Context, status func(context.Context) Status) error {
	var before Faults
	var missing absence
	for ctx.Err() == nil {
		now := t.readFaults(ctx, before)
		t.faults.Store(&now)
		t.logFault("parameters overflowed: checkpoints stopped", "value", now.Overflow, before.Overflow)
		t.logFault("parameter servers wait: checkpoint is damaged or missing", "reason", now.Unrestored, before.Unrestored)
		t.logFault("synchronous steps cannot be complete", logrus.ErrorKey, now.StageRoom, before.StageRoom)
		before = now
		if s := status(ctx); s.Unknown == "" {
			missing.note(t.config.Log, s.Missing)
		}
		t.Clock().Sleep(ctx, faultsEvery)
	}
	return context.Cause(ctx)
}

// readFaults returns the faults that are there now. Those of the servers are the ones before if no server answers.
func (t *term) readFaults(ctx context.Context, before Faults) Faults {
	bounded, cancel := t.within(ctx, faultsEvery)
	now, err := t.config.Servers.Faults(bounded)
	cancel()
	if err != nil && now == (Faults{}) {
		now = before
	}
	bounded, cancel = t.within(ctx, faultsEvery)
	defer cancel()
	now.StageRoom = ""
	if err := t.checkStageRoom(bounded, 0); errors.Is(err, ErrStageRoom) {
		now.StageRoom = err.Error()
	}
	return now
}

// logFault logs a fault whose text has changed.
func (t *term) logFault(message, field, now, before string) {
	if now != "" && now != before {
		t.config.Log.WithField(field, now).Error(message)
	}
}

// ErrStageRoom: the gradients of a synchronous step do not fit the parameter servers.
var ErrStageRoom = errors.New("no room for staged gradients")

// checkStageRoom returns nil in a job without synchronous steps.
func (t *term) checkStageRoom(ctx context.Context, servers int) error {
	if !t.config.Sync {
		return nil
	}
	var trainers int
	if err := t.Read(ctx, func(q *taskqueue.Queue) { trainers = q.Trainers() }); err != nil {
		return err
	}
	return t.config.Servers.CheckStageRoom(ctx, max(trainers-t.config.Backups, 1), servers)
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
