package master

import (
	"context"
	"errors"
	"time"

	"trainmaster/taskqueue"
)

// StageRoomShards are parameter servers that can say whether they have memory for the gradients of a synchronous step.
type StageRoomShards interface {
	Shards
	// CheckStageRoom returns [ErrStageRoom] if the gradients of all trainers do not fit --stage-bytes, on as many servers; 0: as
	// many as there are.
	CheckStageRoom(ctx context.Context, trainers, servers int) error
}

// ErrStageRoom: the gradients of a synchronous step do not fit the parameter servers.
var ErrStageRoom = errors.New("no room for staged gradients")

const stageRoomEvery = 5 * time.Second

// checkStageRoom is nil in a job of another mode, and with servers that cannot say it.
func (m *Master) checkStageRoom(ctx context.Context, t *term, servers int) error {
	shards, ok := m.shards.(StageRoomShards)
	if !ok || !m.config.Sync {
		return nil
	}
	var trainers int
	if err := t.inspect(ctx, func(q *taskqueue.Queue) { trainers = q.Trainers() }); err != nil {
		return err
	}
	return shards.CheckStageRoom(ctx, max(trainers-m.config.Backups, 1), servers)
}

// watchStageRoom notes for the status that steps cannot be complete, until ctx ends.
func (m *Master) watchStageRoom(ctx context.Context, t *term) error {
	clock := t.committer.time
	for ctx.Err() == nil {
		bounded, cancel := clock.WithTimeout(ctx, stageRoomEvery)
		err := m.checkStageRoom(bounded, t, 0)
		cancel()
		var text string
		if errors.Is(err, ErrStageRoom) {
			text = err.Error()
		}
		if before := t.stageRoom.Swap(&text); text != "" && (before == nil || *before != text) {
			m.log.WithError(err).Error("synchronous steps cannot be complete")
		}
		clock.Sleep(ctx, stageRoomEvery)
	}
	return context.Cause(ctx)
}
