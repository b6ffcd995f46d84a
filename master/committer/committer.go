package committer

import (
	"context"
	"fmt"
	"time"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// Committer serializes all writes of a term. It owns the state; no other goroutine reads or modifies it.
//
//	gather ──▶ apply ──▶ write ──▶ effects ──▶ answer ──▶ linger ──▶ gather
//	                       │ definitely failed: back to the committed state,
//	                       └────────▶ the batch's callers get the error
type Committer struct {
	*inbox
	*state
	onEnd func() // called first when the term ends

	clock   JobClock
	sample  time.Time // of clock
	batcher batcher

	batch  []*Pending
	parked []*Pending // answered "wait", held back

	cutDisturbed bool // a commit was slow or refused since the last CutBegin

	mailboxes []*component.Mailbox
	unblocked [taskqueue.WaitFors]bool // an event may have changed the answer of a parked request that waits for it
}

func newCommitter(s *state, onEnd func()) *Committer {
	c := &Committer{inbox: newInbox(), state: s, onEnd: onEnd, sample: s.time.Now()}
	//guard:job-clock-restored
	c.clock.Now, c.clock.Committed = s.queue.Clock(), s.queue.Clock()
	return c
}

// Run commits until the term ends, and returns why. A panic ends the term and not the process: the state in memory is discarded, no
// caller receives a result, and the next term reads the state that etcd has. An event that panics is dropped alone and ends nothing.
func (c *Committer) Run(ctx context.Context) (err error) {
	defer func() { c.End(err) }()
	return component.Contain(c.log, "committer", func() error { return c.run(ctx) })
}

func (c *Committer) run(ctx context.Context) error {
	c.sample = c.time.Now() // no request could arrive while the term was announced
	c.stopping = ctx
	ticker := time.NewTicker(TickEvery)
	defer ticker.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	work, release := WhileHeld(context.WithoutCancel(ctx), c.lead) // a write in progress runs to its end unless the lock is lost
	defer release()
	for {
		tick := false
		select {
		case <-ctx.Done():
			if err := c.Round(work, false); err != nil {
				return err
			}
			return context.Cause(ctx)
		case <-c.lead.Lost():
			return fmt.Errorf("%w: the lock is lost", taskqueue.ErrFenced)
		case <-ticker.C:
			tick = true
		case <-c.some:
		}
		c.linger(ctx, timer)
		if err := c.Round(work, tick); err != nil {
			return err
		}
	}
}

// End fails all queued requests and rejects new ones.
func (c *Committer) End(err error) {
	c.onEnd() // before any caller receives the error
	answer := ErrNotLeader
	if Fatal(err) {
		answer = err // the next term would say the same
	}
	left := c.close(fmt.Errorf("%w: %w", ErrNotLeader, err))
	for _, list := range [][]*Pending{c.batch, c.parked, left} {
		for _, o := range list {
			o.finish(answer)
		}
	}
}

// linger delays the next batch so that callers of the previous batch can join it.
func (c *Committer) linger(ctx context.Context, timer *time.Timer) {
	target, limit := c.batcher.linger(c.len())
	rest := limit - c.since(c.written)
	if target == 0 || rest <= 0 || !c.expect(target) {
		return
	}
	timer.Reset(rest)
	select {
	case <-c.full:
	case <-timer.C:
	case <-ctx.Done():
	}
	timer.Stop()
}

// Round commits all queued requests. It then retries the parked requests, and repeats that while a retry answers at least one of
// them.
func (c *Committer) Round(ctx context.Context, tick bool) error {
	//guard:tick-after-batch
	c.batch = c.take(c.batch)
	if tick { // after all queued requests: a request that a slow store delayed is not late
		c.batch = append(c.batch, &Pending{ctx: ctx, Request: Request{Event: &taskqueue.Tick{}}, done: make(chan struct{}, 1)})
		if c.lead.Valid() { // without a valid lease, an answer must wait for a commit
			c.expire(c.time.Now())
		}
		if (c.queue.Active() || c.queue.Trainers() > 0) && c.since(c.written) >= CommitEvery {
			c.queue.Touch() // advances the job clock
		}
	}
	for waiting := 0; ; {
		for len(c.batch) > 0 {
			t := c.time.Now()
			n, err := c.applyBatch(ctx, c.advance(t))
			if err != nil {
				return err
			}
			ready := c.queue.Ready()
			if ready.MustCommit {
				//guard:answer-after-commit
				err := c.save(ctx, ready)
				refused, err := c.saved(t, err)
				if err != nil {
					return err
				}
				if refused != nil {
					if err := c.refuse(n, refused); err != nil {
						return err
					}
					continue
				}
				c.publishEffects(ready.Effects)
			} else if !c.lead.Valid() { //guard:lease-valid-before-answer
				return fmt.Errorf("%w: the lease may have run out", taskqueue.ErrFenced)
			}
			wrote, queued := c.written.After(t), c.len() // before the answered ones are back
			if answered := c.deliver(n); wrote {
				c.batcher.committed(answered, queued, c.since(t))
			}
		}
		parked := len(c.parked)
		if parked == waiting || !c.unpark() { // equal: the dispatchable tasks do not fit the parked requests
			return nil
		}
		waiting = parked
	}
}

// advance lets the job clock advance to t.
func (c *Committer) advance(t time.Time) taskqueue.Clock {
	now := c.clock.Advance(t.Sub(c.sample))
	c.sample = t
	return now
}

// saved notes the result of a commit that began at t. It returns the error that ends the term, or the error for the callers of a
// batch that was refused.
func (c *Committer) saved(t time.Time, result error) (refused, err error) {
	//guard:slow-commit-not-counted
	if c.since(t) > SlowStore {
		c.sample = c.time.Now() // no request could arrive or be answered during the commit
	}
	if result != nil || c.since(t) > SlowStore {
		c.cutDisturbed = true
	}
	switch {
	case result == nil:
		c.clock.Committed = c.clock.Now
		return nil, nil
	case Terminal(result):
		return nil, result
	}
	c.log.WithError(result).Error("commit refused, nothing was written")
	return fmt.Errorf("%w: %w", ErrNotStored, result), nil
}

// unpark moves the parked requests whose answer may have changed to the batch. It returns false if there is none.
func (c *Committer) unpark() bool {
	//guard:parked-requests-retried
	all := c.queue.Dispatchable()
	kept := c.parked[:0]
	for _, o := range c.parked {
		if w := o.answer.WaitFor; c.unblocked[w] || all && w != taskqueue.WaitStep {
			c.batch = append(c.batch, o)
		} else {
			kept = append(kept, o)
		}
	}
	clear(c.parked[len(kept):])
	c.parked, c.unblocked = kept, [taskqueue.WaitFors]bool{}
	return len(c.batch) > 0
}

// SlowStore is the longest commit that advances the job clock. A commit that takes longer, or fails later, does not
// count toward any timeout.
//
//guard:slow-store-threshold
const SlowStore = time.Second

// applyBatch applies the batch to the queue until a transaction is full. It returns the number of requests applied. If a request
// panics, applyBatch drops that request, restores the stored state and applies the other requests again.
func (c *Committer) applyBatch(ctx context.Context, now taskqueue.Clock) (n int, err error) {
	for again := true; again; {
		again = false
		//guard:batch-advances-clock
		c.queue.Advance(now)
		for n = 0; n < len(c.batch) && c.roomInBatch() && !again; n++ {
			o := c.batch[n]
			if o.ctx.Err() != nil {
				o.drop(context.Cause(o.ctx))
			}
			if o.dropped {
				continue
			}
			if err := c.checkSeenCommit(ctx, o.Event); err != nil {
				return n, err
			}
			if o.Parts != nil {
				if err := c.putParts(ctx, o.Parts); err != nil {
					if Terminal(err) {
						return n, err
					}
					o.drop(fmt.Errorf("%w: %w", ErrNotStored, err))
					continue
				}
				o.Parts = nil
			}
			again = !func() (ok bool) {
				defer c.recoverPending(o)
				switch o.Event.(type) {
				case nil:
					return true
				case *taskqueue.CutBegin:
					c.cutDisturbed = false
				case *taskqueue.CutFence:
					//guard:cut-after-refusal
					if c.cutDisturbed {
						o.err = ErrCutDisturbed
						return true
					}
				}
				o.answer = c.queue.Apply(now, o.Event)
				o.err = o.answer.Err
				return true
			}()
		}
		if again {
			if err := c.reload(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// putParts writes the parts of a table. All callers wait for it, so an unknown outcome ends the term, as for a
// commit: after the time to live of the lease for one part, or when the master stops.
func (c *Committer) putParts(ctx context.Context, parts *Parts) error {
	began := c.time.Now()
	defer func() {
		if c.since(began) > SlowStore {
			c.sample, c.cutDisturbed = c.time.Now(), true // no request could arrive during the writes
		}
	}()
	for i := range parts.Writes {
		if c.stopping.Err() != nil {
			return ErrStopping
		}
		//guard:part-write-time-limit
		bounded, cancel := c.time.WithTimeout(ctx, c.lead.TTL())
		//guard:stop-ends-part-write
		release := context.AfterFunc(c.stopping, cancel)
		err := c.lead.PutParts(bounded, c.revision, parts.Writes[i:i+1], nil)
		release()
		cancel()
		if err != nil {
			return err
		}
		if parts.Progress != nil {
			parts.Progress(i+1, len(parts.Writes))
		}
	}
	return nil
}

// MaxBatchLedger bounds what the ledger of one transaction may grow to, in bytes, before the
// request that passes it.
const MaxBatchLedger = 256 << 10

// roomInBatch reports whether a transaction takes another request.
func (c *Committer) roomInBatch() bool {
	return c.queue.PendingWrites() < MaxBatchKeys-batchSlack && c.queue.PendingLedger() < MaxBatchLedger
}

// checkSeenCommit compares the newest commit that a trainer has seen with the last commit of this term. A number counts only with
// its proof, because any client can send a number. Only a current leader may report that the store went back in time: a
// leader that lost its lock without noticing has only missed later commits.
func (c *Committer) checkSeenCommit(ctx context.Context, event taskqueue.Event) error {
	r, ok := event.(*taskqueue.Request)
	last := c.number.Load()
	//guard:commit-number-proof
	if !ok || r.SeenCommit <= last || r.JobID != c.queue.JobID() || !c.proves(r.SeenCommit, r.SeenProof) {
		return nil
	}
	//guard:former-leader-reads-state
	if _, _, err := c.readBack(ctx, c.time.Now().Add(c.lead.TTL())); err != nil {
		return fmt.Errorf("a trainer saw commit %d, the last commit here is %d: %w", r.SeenCommit, last, err)
	}
	return fmt.Errorf("%w: a trainer saw commit %d of this job, the store knows %d: etcd was restored from an old backup; restore a newer one, or start the job under another name", ErrStoreWentBack, r.SeenCommit, last)
}

// read calls the read function of a request with the committed queue.
func (c *Committer) read(o *Pending) {
	defer c.recoverPending(o)
	o.Read(c.queue)
}

// recoverPending drops a request that panicked.
func (c *Committer) recoverPending(o *Pending) {
	if r := recover(); r != nil {
		c.log.WithField("event", fmt.Sprintf("%T", o.Event)).WithField("panic", r).WithField("stack", stack()).Error("an event was dropped")
		//guard:panic-drops-one-request
		o.drop(fmt.Errorf("internal error: %v; nothing was changed", r))
	}
}

// publishEffects posts the effects of a committed batch.
func (c *Committer) publishEffects(effects []taskqueue.Effect) {
	for _, e := range effects {
		if u, ok := e.(taskqueue.Unblocked); ok {
			c.unblocked[u.On] = true
		}
		c.Post(e)
	}
}

// Post publishes an effect to the mailboxes of its kind.
func (c *Committer) Post(e taskqueue.Effect) {
	for _, m := range c.mailboxes {
		m.Post(e)
	}
}

// Effects returns a mailbox for effects of the given kinds, which has the outstanding ones already. It must be called before Run.
func (c *Committer) Effects(kinds ...taskqueue.EffectKind) *component.Mailbox {
	m := component.NewMailbox(kinds...)
	//guard:mailbox-starts-outstanding
	for _, e := range c.queue.Outstanding() {
		m.Post(e)
	}
	c.mailboxes = append(c.mailboxes, m)
	return m
}

// refuse returns the error of a failed commit to the first n callers of the batch. Read-only requests see the stored state.
func (c *Committer) refuse(n int, err error) error {
	c.counts.refused.Add(1)
	//guard:rollback-after-refusal
	if err := c.reload(); err != nil {
		return err
	}
	for _, o := range c.batch[:n] {
		switch {
		case o.dropped:
		case o.Read != nil:
			c.read(o)
		default:
			o.err = err
		}
		o.finish(nil)
	}
	c.batch = append(c.batch[:0], c.batch[n:]...)
	return nil
}

// deliver answers the first n requests of the batch, or parks them; it returns how many were
// answered.
func (c *Committer) deliver(n int) (answered int) {
	for _, o := range c.batch[:n] {
		switch {
		case o.err != nil:
		case o.Read != nil:
			c.read(o)
		case o.Waits && o.mustWait() && o.ctx.Err() == nil:
			o.park(c.sample.Add(LongPoll))
			c.parked = append(c.parked, o)
			continue
		}
		o.finish(nil)
		answered++
	}
	rest := copy(c.batch, c.batch[n:])
	clear(c.batch[rest:])
	c.batch = c.batch[:rest]
	return answered
}

// expire answers parked requests that reached their deadline or whose caller is gone.
func (c *Committer) expire(now time.Time) {
	kept := c.parked[:0]
	for _, o := range c.parked {
		if now.Before(o.until) && o.ctx.Err() == nil {
			kept = append(kept, o)
			continue
		}
		o.finish(nil)
	}
	clear(c.parked[len(kept):])
	c.parked = kept
}

// Submit applies an event and returns its answer after the commit.
func (c *Committer) Submit(ctx context.Context, ev taskqueue.Event) (taskqueue.Answer, error) {
	return c.Do(ctx, Request{Event: ev})
}

// Wait does the same, but holds back an answer that waits for other trainers, for up to [LongPoll].
func (c *Committer) Wait(ctx context.Context, ev taskqueue.Event) (taskqueue.Answer, error) {
	return c.Do(ctx, Request{Event: ev, Waits: true})
}

// Read calls look with the committed queue. look must not change it.
func (c *Committer) Read(ctx context.Context, look func(*taskqueue.Queue)) error {
	_, err := c.Do(ctx, Request{Read: look})
	return err
}
