package master

import (
	"context"

	"trainmaster/taskqueue"
)

// boundary is the interval between two synchronous steps. While a caller holds it, no step is sent to a server, and all
// parameter servers are at the version of the last step sent. In a job without steps there is nothing to hold. Steps
// can be committed meanwhile; they are sent to the servers afterwards.
type boundary struct {
	term    *control
	telling turn
}

// hold returns once every server has the last committed step. Trainers can receive that step before all servers have
// it.
func (b *boundary) hold(ctx context.Context) error {
	if err := b.telling.take(ctx); err != nil {
		return err
	}
	var last taskqueue.Step
	err := b.term.Read(ctx, func(q *taskqueue.Queue) { last, _ = q.SyncStep() })
	if err == nil && last.Version > 0 {
		_, err = b.term.config.Servers.CommitStep(ctx, last)
	}
	if err != nil {
		b.telling.give()
	}
	return err
}

func (b *boundary) release() { b.telling.give() }
