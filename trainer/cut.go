package trainer

import (
	"context"
	"errors"
	"sync/atomic"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// cuts is the trainer's view of the cuts of its master, in a job with rollback.
type cuts struct {
	epoch   uint32        // epoch of the job at the join
	entered bool          // the trainer is a member of the ring
	step    uint64        // Number of the cut after the last flushed cut. Records of Used belong to it.
	wanted  atomic.Uint64 // cut that waits for the trainer; 0: none
	came    chan struct{} // has a token when wanted was set
	flushed chan struct{} // has a token when a cut was flushed
}

func newCuts(epoch uint32) *cuts {
	return &cuts{epoch: epoch, flushed: make(chan struct{}, 1), came: make(chan struct{}, 1)}
}

// Cuts reports whether the job takes cuts of data and parameters, and rolls back to the last cut after a loss (--update-mode sync of
// its master). The trainer of such a job must call Boundary between two mini-batches and Used after each mini-batch. It must use the
// parameters of [Client.Epoch], and must join again after ErrRolledBack.
func (c *Client) Cuts() bool { return c.cuts != nil }

// Epoch returns the number of rollbacks of the job at the join, counted from 1. It is 0 if the job takes no cuts.
func (c *Client) Epoch() uint32 {
	if c.cuts == nil {
		return 0
	}
	return c.cuts.epoch
}

// Used adds records of a task that the parameters include: all servers acknowledged them, or
// their step is committed.
func (c *Client) Used(task *taskqueue.Task, records int) {
	if c.cuts != nil {
		c.explicit.Apply(task.Token, c.cuts.step, records)
	}
}

// Boundary waits while a cut is taken. Before the call, all pushes of this trainer must be
// acknowledged and reported with Used.
func (c *Client) Boundary(ctx context.Context) error {
	if c.cuts == nil || c.cuts.wanted.Load() == 0 {
		return nil
	}
	return c.flushCut(ctx, c.cuts.wanted.Load())
}

// untilCut returns a context that ends when a cut begins to wait for this trainer, and a function that releases it.
func (c *Client) untilCut(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-c.cuts.came:
			cancel()
		case <-bounded.Done():
		}
	}()
	return bounded, cancel
}

// enter makes this trainer a member before its first task.
func (c *Client) enter(ctx context.Context) error {
	reply, err := c.requestEntry(ctx)
	if err != nil {
		return c.stepRefused(err, "begin")
	}
	return c.applyEntry(reply)
}

// requestEntry waits until the master has answered where this trainer begins. It changes nothing.
func (c *Client) requestEntry(ctx context.Context) (*wire.StepReply, error) {
	for {
		reply, err := call[wire.StepReply](ctx, c.link, "LastStep", wire.LastStepRequest{Trainer: c.who, Epoch: c.cuts.epoch})
		if err != nil || reply.Done {
			return reply, err
		}
	}
}

// applyEntry makes this trainer a member.
func (c *Client) applyEntry(reply *wire.StepReply) error {
	if reply.Place.Epoch != c.cuts.epoch {
		return ErrRolledBack
	}
	if _, err := c.applyStepReply(reply, nil, ""); err != nil {
		return err
	}
	c.cuts.step, c.cuts.entered = max(reply.Place.Step, reply.Place.Round)+1, true
	c.owned.Go(c.watchCuts)
	return nil
}

// watchCuts stores the cut that waits for this trainer, until Close.
func (c *Client) watchCuts() {
	for {
		reply, err := call[wire.StepReply](c.ctx, c.link, "CutWatch", wire.CutWatchRequest{Trainer: c.who})
		switch {
		case err != nil: // Next gets the same error
			if errors.Is(err, ErrJobFailed) {
				c.fail(err)
			}
			return
		case !reply.Done:
			continue
		}
		c.cuts.wanted.Store(reply.Place.Round)
		select {
		case c.cuts.came <- struct{}{}:
		default:
		}
		select {
		case <-c.cuts.flushed:
		case <-c.ctx.Done():
			return
		}
	}
}

// flushCut reports the position of this trainer and waits for the release of the cut. An abandoned
// cut is no error.
func (c *Client) flushCut(ctx context.Context, cut uint64) error {
	if err := c.sayAll(ctx); err != nil {
		return err
	}
	place, err := c.awaitRelease(ctx, c.flushRequest(cut))
	if err != nil {
		return err
	}
	c.wait = taskqueue.WaitTask
	c.released(cut, place)
	return nil
}

// flushRequest returns the report of the position of this trainer.
func (c *Client) flushRequest(cut uint64) wire.FlushedRequest {
	return wire.FlushedRequest{Trainer: c.who, Generation: c.explicit.Generation, Step: cut, Positions: c.explicit.Positions(cut)}
}

// awaitRelease reports the position until the cut is released. The result is nil if the cut was abandoned.
func (c *Client) awaitRelease(ctx context.Context, request wire.FlushedRequest) (*taskqueue.StepPlace, error) {
	for {
		reply, err := call[wire.StepReply](ctx, c.link, "Flushed", request)
		switch {
		case errors.Is(err, wire.ErrOtherStep):
			return nil, nil
		case err != nil:
			return nil, c.stepRefused(err, "stop for a cut")
		case reply.Done:
			return &reply.Place, nil
		}
	}
}

// released continues after a cut. place is nil if the cut was abandoned.
func (c *Client) released(cut uint64, place *taskqueue.StepPlace) {
	if place != nil {
		c.explicit.Committed(place.Step)
		c.cuts.step = max(c.cuts.step, cut+1)
	}
	c.cuts.wanted.CompareAndSwap(cut, 0)
	select {
	case c.cuts.flushed <- struct{}{}:
	default:
	}
}

// sayAll returns when all finishes are reported.
func (c *Client) sayAll(ctx context.Context) error {
	for said := false; !said || c.session.Unsaid(); said = true {
		if c.flight == nil && c.session.Unsaid() {
			c.send(false)
		}
		if err := c.collect(ctx); err != nil {
			return err
		}
	}
	return nil
}
