package master

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/taskqueue"
)

// LatestSetKey holds the manifest of the newest complete set of checkpoints: what is not
// named there was never finished.
const LatestSetKey = "/checkpoints/latest"

// ErrNothingToCut is the answer of parameter servers that have nothing to keep, or no place
// for it, and of a job that has none.
var ErrNothingToCut = errors.New("there is nothing to take a checkpoint of")

// Cut is a moment of all parameter servers.
type Cut interface {
	Number() uint64
	// Write returns the manifest of the set of checkpoints of that moment, when all of it is on
	// the disk. position is what the set is to say of where the data stood; nil: nothing.
	Write(ctx context.Context, job string, position []byte) (set []byte, err error)
	// Abort drops the moment.
	Abort(ctx context.Context) error
	// Prune removes what is older than the newest sets to keep.
	Prune(ctx context.Context, keep int) error
}

// CheckpointStatus is about the sets of this term.
type CheckpointStatus struct {
	Set     uint64        // number of the newest complete one; 0: none yet
	Age     time.Duration // since it was complete
	Failure string        // why the last attempt failed
}

// checkpointer takes checkpoints of all parameter servers while a term lasts.
//
//	hold ──▶ begin on all ──▶ release ──▶ write on all ──▶ the set's manifest ──▶ /checkpoints/latest ──▶ prune
//	              │ whatever fails: the cut is dropped, the set before it stays
//
// What is held is only held while the moments are fixed; the files are written meanwhile
// training goes on.
type checkpointer struct {
	master *Master
	term   *term
	still  *boundary
	cuts   *rewinding // of trainers too; nil: of the servers alone
	log    *logrus.Entry

	one turn // checkpoint at a time

	mu      sync.Mutex
	set     uint64
	at      time.Time
	failure string
}

const (
	checkpointPoll  = 200 * time.Millisecond
	checkpointRetry = time.Second // after a failure; pauses double up to
	checkpointPause = time.Minute // this
	beginTimeout    = 10 * time.Second
	writeTimeout    = 10 * time.Minute
	lastTimeout     = time.Minute
)

// run takes a checkpoint whenever one is due, until ctx ends.
func (c *checkpointer) run(ctx context.Context) error {
	if c.cuts != nil {
		return c.cuts.run(ctx)
	}
	poll := time.NewTicker(checkpointPoll)
	defer poll.Stop()
	last, err := c.term.progress(ctx)
	if err != nil {
		return err
	}
	var retry pace
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
		}
		now, err := c.term.progress(ctx)
		if err != nil {
			return err
		}
		if retry.tooSoon(now.at) || !c.master.config.CheckpointEvery.due(now, last) {
			continue
		}
		if err := c.take(ctx); err != nil {
			retry.failed(c.term.committer.time.Now(), err)
			continue
		}
		last, retry = now, pace{}
	}
}

// pace says when a cut that failed is tried again: ever later, since what a failed set left stays on the disk until a newer
// one is complete. One that left nothing is tried again soon.
type pace struct {
	again time.Time // not before
	pause time.Duration
}

func (p *pace) tooSoon(now time.Time) bool { return now.Before(p.again) }

func (p *pace) failed(now time.Time, err error) {
	p.pause = max(checkpointRetry, min(2*p.pause, checkpointPause))
	if errors.Is(err, ErrNothingToCut) || errors.Is(err, errNotFlushed) {
		p.pause = checkpointRetry
	}
	p.again = now.Add(p.pause)
}

// within is context.WithTimeout on the clock of the term.
func (c *checkpointer) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return c.term.committer.time.WithTimeout(ctx, d)
}

// lastCheckpoint keeps what the job came to: nobody trains any more.
func (t *term) lastCheckpoint(ctx context.Context) {
	if t.checkpoints == nil || t.checkpoints.cuts != nil { // the last cut has all
		return
	}
	bounded, cancel := t.checkpoints.within(ctx, lastTimeout)
	defer cancel()
	_ = t.checkpoints.take(bounded) // it is said
}

// take takes a checkpoint, or says why there is none: the one before it stays.
func (c *checkpointer) take(ctx context.Context) error {
	if err := c.one.take(ctx); err != nil {
		return err
	}
	defer c.one.give()
	began := c.term.committer.time.Now()
	cut, err := c.complete(ctx)
	switch {
	case errors.Is(err, ErrNothingToCut):
		return err
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		c.note(0, err)
		c.log.WithError(err).Error("checkpoint not complete: the set before it stays, training goes on")
		return err
	}
	c.note(cut.Number(), nil)
	c.log.WithFields(logrus.Fields{"set": cut.Number(), "took": c.term.committer.since(began).Round(time.Millisecond)}).Info("checkpoint complete")
	bounded, cancel := c.within(ctx, writeTimeout)
	defer cancel()
	if err := cut.Prune(bounded, c.master.config.CheckpointKeep); err != nil && ctx.Err() == nil {
		c.log.WithError(err).Warn("older checkpoints not removed")
	}
	return nil
}

// complete returns a cut whose set is complete and named in the store.
func (c *checkpointer) complete(ctx context.Context) (Cut, error) {
	cut, position, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	bounded, cancel := c.within(ctx, writeTimeout)
	defer cancel()
	set, err := cut.Write(bounded, c.master.config.Job, position)
	switch {
	case err != nil:
	case c.cuts != nil:
		err = c.cuts.publish(ctx, cut.Number(), set)
	default:
		err = c.term.publish(ctx, taskqueue.Write{Key: LatestSetKey, Value: set})
	}
	if err != nil {
		bounded, cancel := c.within(context.WithoutCancel(ctx), beginTimeout)
		defer cancel()
		return nil, errors.Join(err, cut.Abort(bounded))
	}
	return cut, nil
}

// begin fixes the moments of all servers.
func (c *checkpointer) begin(ctx context.Context) (Cut, []byte, error) {
	if c.cuts != nil {
		return c.cuts.begin(ctx)
	}
	var epoch uint32
	if err := c.term.inspect(ctx, func(q *taskqueue.Queue) { epoch = q.Epoch() }); err != nil {
		return nil, nil, err
	}
	ctx, cancel := c.within(ctx, beginTimeout)
	defer cancel()
	if err := c.still.hold(ctx); err != nil {
		return nil, nil, fmt.Errorf("stop for a checkpoint: %w", err)
	}
	defer c.still.release()
	cut, err := c.master.shards.Begin(ctx, uint64(c.term.committer.lead.Revision()), epoch, func(last uint64) uint64 { return last + 1 })
	return cut, nil, err
}

func (c *checkpointer) note(set uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure = ""; err != nil {
		c.failure = err.Error()
		return
	}
	c.set, c.at = set, c.term.committer.time.Now()
}

func (c *checkpointer) status() CheckpointStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := CheckpointStatus{Set: c.set, Failure: c.failure}
	if c.set > 0 {
		s.Age = c.term.committer.since(c.at)
	}
	return s
}

// turn is had by one at a time: by who tells the servers of a step, or fixes the moments of a
// cut.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t turn) give() { <-t }

// progress says how far the job is.
func (t *term) progress(ctx context.Context) (p progress, err error) {
	err = t.inspect(ctx, func(q *taskqueue.Queue) {
		for _, set := range q.Overview().Sets {
			p.passes += uint64(set.Pass)
		}
		if t.committer.steps != nil {
			p.steps = t.committer.steps.last.Version
		}
	})
	p.at = t.committer.time.Now()
	return p, err
}

// publish writes keys in one transaction with the state.
func (t *term) publish(ctx context.Context, writes ...taskqueue.Write) error {
	_, err := t.committer.do(ctx, func(o *op) { o.writes = writes })
	return err
}
