package persist

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
)

const (
	pointerPoll   = time.Second            // interval of a waiting shard between reads of the named set
	lastSetPoll   = 200 * time.Millisecond // interval of a stopping shard
	lastSetLimit  = 30 * time.Second       // maximum wait for the last set
	withoutLeader = 3 * time.Second        // the same while no master leads
	askMost       = time.Minute            // longest pause between two requests for a set
)

// setRequests repeats the request for a set with growing pauses, in case it was lost. Each request is a revision in etcd.
type setRequests struct {
	pause time.Duration
	next  time.Time
}

func (r *setRequests) send(ctx context.Context, claim Jobs) error {
	if time.Now().Before(r.next) {
		return nil
	}
	r.pause = min(max(2*r.pause, pointerPoll), askMost)
	r.next = time.Now().Add(r.pause)
	return claim.AskSet(ctx)
}

// latestCut is the last set that the shard has a part of.
type latestCut struct {
	number  uint64
	changes uint64                // of the shard before it
	part    checkpoint.Generation // zero: not written yet, or the set has none
}

// in reports whether a set has the part.
func (l latestCut) in(set *checkpoint.Set, index int) bool {
	//guard:set-has-the-part
	return set.Number >= l.number && (index >= len(set.Shards) || set.Shards[index].Generation == l.part)
}

// noCut is of a shard that has changes in no set.
var noCut = latestCut{changes: math.MaxUint64}

// isSaved reports whether the set that etcd names has all changes of the shard. An operator may have named an older set. A partition
// that arrived in a migration is in no set before the placement is committed. A set that was taken without this server has an older part.
func (c *Checkpoints) isSaved(job JobState) bool {
	set, err := checkpoint.ParseSet(job.LatestSet)
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	return err == nil && c.latest.in(set, c.shard.Index()) && !c.shard.HasTaken() && c.shard.Changes() == c.latest.changes
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
	var first setRequests
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.begun:
		case <-time.After(pointerPoll):
		}
		awaits := c.shard.AwaitsFirstSet()
		if !awaits {
			first = setRequests{}
		}
		if !awaits && c.shard.Unrestored() == "" {
			continue
		}
		job, err := claim.Current(ctx)
		switch {
		case err != nil:
		case awaits && c.isSaved(job):
			c.shard.Open()
		case awaits:
			err = first.send(ctx, claim)
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
	if h := c.shard.View(); h == nil || !c.shard.Ready() || h.Model().Sync || c.shard.CheckOverflow() != nil {
		return
	}
	c.stopping.Store(true)
	//guard:stopping-server-takes-no-partitions
	c.shard.RefuseMoves()
	began := time.Now()
	led := began // when there was a leader, or etcd did not answer
	//guard:last-set-time-limit
	ctx, cancel := context.WithTimeout(ctx, lastSetLimit)
	defer cancel()
	var last setRequests
	var job JobState
	var err error
	for ctx.Err() == nil {
		if job, err = claim.Current(ctx); err == nil {
			if c.isSaved(job) {
				return
			}
			err = last.send(ctx, claim)
		}
		if err != nil || job.Led {
			led = time.Now()
		}
		if time.Since(led) > withoutLeader {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(lastSetPoll):
		}
	}
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return // the server ends for another reason
	}
	c.log.WithError(err).WithFields(logrus.Fields{"leader": job.Led, "waited": time.Since(began).Round(time.Second)}).Warn("stopping without a last checkpoint set: updates since the latest set are lost")
}
