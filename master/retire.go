package master

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

const (
	retireEvery   = 5 * time.Second // for servers that were restarted with an older checkpoint
	retireTimeout = 10 * time.Second
)

// retire sends the sessions to the servers when one has ended, and again after retireEvery. The end of a session is committed
// before it is sent, so a former leader sends nothing wrong, only less.
func (t *control) retire(ctx context.Context, ended *component.Mailbox) error {
	clock := t.Clock()
	for ctx.Err() == nil {
		ended.Take()
		bounded, cancel := clock.WithTimeout(ctx, retireTimeout)
		err := t.tellRetired(bounded)
		late := bounded.Err() != nil
		cancel()
		rest := ended.Changed()
		switch {
		case late, errors.Is(err, errNotTold):
			t.config.Log.WithError(err).Debug("sessions not sent to all parameter servers, retrying")
			rest = nil // a later end of a session does not make the retry earlier
		case err != nil && ctx.Err() == nil:
			return err
		}
		clock.Wait(ctx, rest, retireEvery)
	}
	return context.Cause(ctx)
}

var errNotTold = errors.New("not all parameter servers were told which trainers are gone")

// tellRetired sends the floor to the servers once.
func (t *control) tellRetired(ctx context.Context) error {
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
		return fmt.Errorf("%w: %w", errNotTold, err)
	}
	return nil
}
