package trainer

import (
	"context"
	"time"

	"trainmaster/taskqueue"
)

// Used notes that the parameters include the first records of a task, in a job with cuts: see [Client.Used]. A smaller number than before has no
// effect.
func (w *Window) Used(task *taskqueue.Task, records int64) {
	c := w.client
	if c.cuts == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if more := records - c.explicit.Used(task.Token); more > 0 {
		c.explicit.Apply(task.Token, c.cuts.step, int(more))
	}
}

// Boundary is [Client.Boundary]. No request of the window is in progress while the trainer is quiesced.
func (w *Window) Boundary(ctx context.Context) error {
	c := w.client
	if c.cuts == nil {
		return nil
	}
	cut := c.cuts.wanted.Load()
	if cut == 0 {
		return nil
	}
	if err := w.quiesce(ctx); err != nil {
		return err
	}
	request := c.flushRequest(cut)
	w.mu.Unlock()
	place, err := c.awaitRelease(ctx, request)
	w.mu.Lock()
	if err == nil {
		c.released(cut, place)
	}
	w.paused--
	w.refused = false // there can be tasks again
	w.changedLocked()
	w.mu.Unlock()
	return err
}

// quiesce returns with the lock, when all finishes are reported and no request is in progress. No request is sent until the caller decrements w.paused.
func (w *Window) quiesce(ctx context.Context) error {
	for {
		if err := w.Reported(ctx); err != nil {
			return err
		}
		w.mu.Lock()
		w.paused++
		var err error
		for w.flying && err == nil {
			err = w.awaitLocked(ctx, time.Now().Add(time.Hour))
		}
		if err == nil {
			err = w.err
		}
		if err == nil && !w.client.session.Unsaid() {
			return nil
		}
		w.paused--
		w.changedLocked()
		w.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// AwaitCut waits for a cut that the master has named in an answer, and then as Boundary. The announcement can come after the answer.
func (w *Window) AwaitCut(ctx context.Context) error {
	c := w.client
	if c.cuts != nil && c.cuts.wanted.Load() == 0 {
		select {
		case <-c.cuts.came:
		case <-time.After(cutNotice):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return w.Boundary(ctx)
}

// Staged is [Client.Staged].
func (w *Window) Staged(ctx context.Context, version uint64, records int) (committed uint64, included bool, err error) {
	return w.client.stagedUntil(ctx, version, records, w.Boundary)
}
