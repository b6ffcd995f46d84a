package pscontrol

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

const retireTimeout = 10 * time.Second

// Sessions returns the component that sends the ended sessions to the servers, and again after resendEvery. The end of a session is
// committed before it is sent, so a former leader sends nothing wrong, only less.
func (c *Control) Sessions() component.Component {
	return &part{Control: c, name: "retired sessions", on: []taskqueue.EffectKind{taskqueue.OnSessionsChanged, component.OnServersChanged}, run: retire}
}

func retire(ctx context.Context, t *term, ended *component.Mailbox) error {
	clock := t.Clock()
	for ctx.Err() == nil {
		ended.Take()
		bounded, cancel := clock.WithTimeout(ctx, retireTimeout)
		err := t.sendSessions(bounded)
		late := bounded.Err() != nil
		cancel()
		rest := ended.Changed()
		switch {
		case late, errors.Is(err, errNotSent):
			t.config.Log.WithError(err).Debug("sessions not sent to all parameter servers, retrying")
			rest = nil // a later end of a session does not make the retry earlier
		case err != nil && ctx.Err() == nil:
			return err
		}
		clock.Wait(ctx, rest, resendEvery)
	}
	return context.Cause(ctx)
}

var errNotSent = errors.New("ended sessions not sent to all parameter servers")

// sendSessions sends the floor to the servers once.
func (t *term) sendSessions(ctx context.Context) error {
	var floor uint64
	var live []uint64
	var version *uint64
	if err := t.Read(ctx, func(q *taskqueue.Queue) {
		floor, live = q.Sessions()
		if last, ok := q.SyncStep(); ok {
			version = &last.Version
		}
	}); err != nil {
		return err
	}
	if err := t.config.Servers.Retire(ctx, uint64(t.Number()), t.JobID(), floor, live, version); err != nil {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	return nil
}
