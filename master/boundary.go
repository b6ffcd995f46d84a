package master

import (
	"context"

	"trainmaster/taskqueue"
)

// boundary is the place between two synchronous steps: while it is held nobody is told of a step, and all
// parameter servers are at the version of the last one that they were told of. In a job without steps there is
// nothing to hold. Steps may be committed meanwhile: the servers hear of them afterwards.
type boundary struct {
	term    *term
	shards  Shards
	telling turn
}

// hold returns once every server has the last committed step: some may not have been told of it yet, and trainers
// may know of it already.
func (b *boundary) hold(ctx context.Context) error {
	if err := b.telling.take(ctx); err != nil {
		return err
	}
	var last taskqueue.Step
	err := b.term.inspect(ctx, func(q *taskqueue.Queue) { last, _ = q.SyncStep() })
	if err == nil && last.Version > 0 {
		_, err = b.shards.CommitStep(ctx, last)
	}
	if err != nil {
		b.telling.give()
	}
	return err
}

func (b *boundary) release() { b.telling.give() }
