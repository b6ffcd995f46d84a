package persist

import (
	"context"
	"math"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
)

const (
	pointerPoll   = time.Second           // interval of a waiting shard between reads of the named set
	lastSetPoll   = 50 * time.Millisecond // interval of a stopping shard
	lastSetLimit  = 30 * time.Second      // maximum wait for the last set
	withoutLeader = 3 * time.Second       // the same while no master leads
)

// latestCut is the last set that the shard has a part of.
type latestCut struct {
	number  uint64
	changes uint64 // of the shard before it
}

// noCut is of a shard that has changes in no set.
var noCut = latestCut{changes: math.MaxUint64}

// isSaved reports whether the set that etcd names has all changes of the shard. An operator may have named an older one.
func (c *Checkpoints) isSaved(job JobState) bool {
	set, err := checkpoint.ParseSet(job.LatestSet)
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	return err == nil && set.Number >= c.latest.number && c.shard.Changes() == c.latest.changes
}

// Begun follows the first parameters of the shard: it asks for the first set.
func (c *Checkpoints) Begun() {
	c.shard.Reserve()
	select {
	case c.begun <- struct{}{}:
	default: // it is asked for
	}
}

// WantsSet reports whether the shard asks for a set.
func (c *Checkpoints) WantsSet() bool { return c.stopping.Load() || c.shard.AwaitsFirstSet() }

// AwaitSet restores a waiting shard each time an operator names a set. It asks for the first set of parameters that a trainer has
// put, and lets pushes begin when etcd names that set. It returns when ctx ends, or with an error that ends the server.
func (c *Checkpoints) AwaitSet(ctx context.Context, claim Jobs) error {
	named := claim.Job().Named
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.begun:
		case <-time.After(pointerPoll):
		}
		first := c.shard.AwaitsFirstSet()
		if !first && c.shard.Unrestored() == "" {
			continue
		}
		job, err := claim.Current(ctx)
		switch {
		case err != nil:
		case first && c.isSaved(job):
			c.shard.Open()
		case first:
			err = claim.AskSet(ctx)
		case job.Named != named:
			named = job.Named
			if err := c.restoreAgain(ctx, job); err != nil && ctx.Err() == nil {
				return err
			}
		}
		if err != nil {
			c.log.WithError(err).Debug("set that etcd names not read, asking again")
		}
	}
}

// AwaitLastSet asks the leader for a set with all updates of the shard, and returns when etcd names one. No trainer may push any more.
// It gives up without a leader, and after lastSetLimit. It asks for no set in a synchronous job, which rolls back when a server starts.
func (c *Checkpoints) AwaitLastSet(ctx context.Context, claim Jobs) {
	//guard:synchronous-server-saves-nothing
	if !c.shard.Ready() || c.shard.View().Model().Sync || c.shard.CheckOverflow() != nil {
		return
	}
	c.stopping.Store(true)
	began := time.Now()
	led := began // when there was a leader
	asked := false
	for ctx.Err() == nil {
		job, err := claim.Current(ctx)
		if err == nil && c.isSaved(job) {
			return
		}
		now := time.Now()
		if err == nil && job.Led {
			led = now
		}
		if now.Sub(led) > withoutLeader || now.Sub(began) > lastSetLimit {
			c.log.WithFields(logrus.Fields{"leader": job.Led, "waited": now.Sub(began).Round(time.Second)}).Warn("stopping without a last checkpoint set: updates since the latest set are lost")
			return
		}
		if err == nil && !asked {
			asked = claim.AskSet(ctx) == nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(lastSetPoll):
		}
	}
}
