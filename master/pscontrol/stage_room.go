package pscontrol

import (
	"context"
	"errors"
	"time"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// ErrStageRoom: the gradients of a synchronous step do not fit the parameter servers.
var ErrStageRoom = errors.New("no room for staged gradients")

const stageRoomEvery = 5 * time.Second

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

// stageRoom returns the component that notes for the status that steps cannot be complete.
func (c *Control) stageRoom() component.Component {
	return &part{Control: c, name: "stage room", prepare: func(_ context.Context, t *term) (func(context.Context) error, error) {
		return t.watchStageRoom, nil
	}}
}

// watchStageRoom notes for the status that steps cannot be complete, until ctx ends.
func (t *term) watchStageRoom(ctx context.Context) error {
	clock := t.Clock()
	for ctx.Err() == nil {
		bounded, cancel := clock.WithTimeout(ctx, stageRoomEvery)
		err := t.checkStageRoom(bounded, 0)
		cancel()
		var text string
		if errors.Is(err, ErrStageRoom) {
			text = err.Error()
		}
		if before := t.stageRoom.Swap(&text); text != "" && (before == nil || *before != text) {
			t.config.Log.WithError(err).Error("synchronous steps cannot be complete")
		}
		clock.Sleep(ctx, stageRoomEvery)
	}
	return context.Cause(ctx)
}
