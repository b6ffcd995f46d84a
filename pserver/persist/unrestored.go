package persist

import (
	"context"
	"errors"
	"time"
)

// pointerPoll is the interval at which a waiting shard reads the name of the set.
const pointerPoll = time.Second

// restore fills the shard from the checkpoint to start from. If the checkpoint is damaged or missing, the shard waits without
// parameters.
func (c *Checkpoints) restore(ctx context.Context, job JobState) error {
	c.job = job
	layout, err := job.Layout()
	if err != nil {
		return err
	}
	r := &restoring{c.shard, c.store, job, layout}
	last, err := r.lastCut(ctx)
	if err != nil {
		return err
	}
	c.lastCut.Store(max(last, c.lastCut.Load()))
	from, err := r.run(ctx)
	if errors.Is(err, ErrUnusable) {
		c.refuse(err)
		return nil
	}
	if err == nil {
		err = c.shard.CheckRestored(layout)
	}
	if err != nil {
		return err
	}
	c.statusMu.Lock()
	c.newest = from.own
	c.statusMu.Unlock()
	if c.shard.Ready() {
		c.shard.Reserve()
	}
	if from.stopped {
		c.stopped = c.shard.Changes()
	}
	c.shard.SetUnrestored("")
	return nil
}

// refuse records the reason why the shard waits.
func (c *Checkpoints) refuse(err error) {
	if c.shard.SetUnrestored(err.Error()) {
		c.log.WithError(err).Error("checkpoint refused, waiting for an operator")
	}
}

// AwaitSet restores a waiting shard each time an operator names a set. It returns when ctx ends, or with an error that
// ends the server.
func (c *Checkpoints) AwaitSet(ctx context.Context, claim Jobs) error {
	named := claim.Job().Named
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pointerPoll):
		}
		if c.shard.Unrestored() == "" {
			continue
		}
		job, err := claim.Current(ctx)
		if err != nil {
			c.log.WithError(err).Debug("set of checkpoints to start from not read, asking again")
			continue
		}
		if job.Named == named {
			continue
		}
		named = job.Named
		if err := c.restoreAgain(ctx, job); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// restoreAgain restores a waiting shard while connections are open. A waiting shard serves no connection.
func (c *Checkpoints) restoreAgain(ctx context.Context, job JobState) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shard.Exclusively(func() error {
		if c.shard.Unrestored() == "" {
			return nil // the leader rolled the shard back to a set before
		}
		return c.restore(ctx, job)
	})
}
