package persist

import (
	"context"
	"errors"
)

// restore fills the shard from the set to start from. If the set is damaged or missing, the shard waits without parameters.
func (c *Checkpoints) restore(ctx context.Context, job JobState) error {
	c.job = job
	layout, err := job.Layout()
	if err != nil {
		return err
	}
	last, err := c.knownCut(ctx)
	if err != nil {
		return err
	}
	c.lastCut.Store(max(last, c.lastCut.Load()))
	set, err := c.load(ctx, layout)
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
	if set != nil {
		c.restored = set.Number
		c.statusMu.Lock()
		c.latest = latestCut{number: set.Number, changes: c.shard.Changes()}
		if index := c.shard.Index(); index < len(set.Shards) {
			c.latest.part = set.Shards[index].Generation
			c.newest = c.latest.part.String()
		}
		c.statusMu.Unlock()
		c.shard.Reserve()
	}
	c.shard.SetUnrestored("")
	//guard:initialization-repeated-without-set
	c.shard.SetNoSet(set == nil && (layout == nil || layout.Owns(c.shard.Index())))
	return nil
}

// refuse records the reason why the shard waits.
func (c *Checkpoints) refuse(err error) {
	if c.shard.SetUnrestored(err.Error()) {
		c.log.WithError(err).Error("checkpoint refused, waiting for an operator")
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
