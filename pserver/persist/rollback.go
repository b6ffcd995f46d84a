package persist

import (
	"context"
	"errors"
	"fmt"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/placement"

	"github.com/sirupsen/logrus"
)

// Rewind brings the shard to a set, or without one to no parameters, in a new job epoch; layout
// is where blocks were moved to, nil if none ever was. The previous parameters are dropped. No trainer is
// connected meanwhile; a trainer that reconnects receives the epoch.
func (c *Checkpoints) Rewind(ctx context.Context, term uint64, epoch uint32, text []byte, layout *placement.Layout, pause func() (resume func())) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.shard
	if err := c.checkTerm(term); err != nil {
		return err
	}
	c.term = term
	if layout != nil && s.Index() >= max(layout.Shards, layout.Goal) {
		s.End(nil)
		return nil
	}
	switch at := s.RolledBackTo(); {
	case epoch == at:
		return nil
	case epoch < at || epoch < s.JobEpoch():
		return fmt.Errorf("%w: job epoch %d, shard %d is at %d", ErrOldCut, epoch, s.Index(), s.JobEpoch())
	}
	c.dropLocked("rollback to a checkpoint set")
	resume := pause()
	defer resume()
	name, err := c.becomeSet(ctx, text, layout, epoch)
	if err != nil {
		err = unusable(name, err, useAnother(c.store))
		if errors.Is(err, ErrUnusable) {
			c.refuse(err) //guard:refused-rollback-shown
		}
		return fmt.Errorf("go back: %w", err)
	}
	s.SetUnrestored("")
	s.Reserve()
	c.log.WithFields(logrus.Fields{"set": name, "job_epoch": epoch, "version": s.Version()}).Info("gone back")
	return nil
}

// becomeSet loads a set, or removes all parameters, while no trainer is connected.
func (c *Checkpoints) becomeSet(ctx context.Context, text []byte, layout *placement.Layout, epoch uint32) (name string, err error) {
	if len(text) == 0 {
		return "the beginning", c.shard.Rollback(epoch, nil)
	}
	name = "the latest set"
	err = c.shard.Rollback(epoch, func() error {
		set, err := checkpoint.ParseSet(text)
		if err != nil {
			return err
		}
		name = set.String()
		parts, err := c.store.Open(ctx, set)
		if err == nil {
			//guard:rollback-keeps-placement
			err = fillFrom(c.shard, parts, c.job, layout)
		}
		return err
	})
	return name, err
}
