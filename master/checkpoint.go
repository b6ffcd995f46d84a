package master

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// LatestSetKey holds the manifest of the newest complete checkpoint set. A set that the manifest does not name is
// incomplete.
const LatestSetKey = "/checkpoints/latest"

// ErrNothingToCut is the answer of parameter servers that have nothing to keep, or no place
// for it, and of a job that has none.
var ErrNothingToCut = errors.New("there is nothing to take a checkpoint of")

// ErrServerMissing is returned if a parameter server of the job is not registered.
var ErrServerMissing = errors.New("is not there")

// Cut is a consistent point of all parameter servers.
type Cut interface {
	Number() uint64
	// Write returns the manifest of the set of checkpoints of that moment, when all of it is on
	// the disk.
	Write(ctx context.Context, about About) (set []byte, err error)
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

// checkpointer takes checkpoints of all parameter servers during a term.
//
//	begin on all ──▶ write on all ──▶ the set's manifest ──▶ /checkpoints/latest ──▶ prune
//	      │ any failure: the cut is dropped, the previous set stays
//
// The files are written while training continues.
type checkpointer struct {
	term *control
	cuts *rewinding // of trainers too; nil: of the servers alone
	log  *logrus.Entry

	box      *component.Mailbox
	one      turn // checkpoint at a time
	failed   bool // the files of an incomplete set may remain on the disks
	datasets described
	awaited  string // why the first checkpoint waits, as it was logged

	mu      sync.Mutex
	set     uint64
	at      time.Time
	failure string
}

const (
	checkpointRetry = time.Second // after a failure; pauses double up to
	checkpointPause = time.Minute // this
	beginTimeout    = 10 * time.Second
	writeTimeout    = 10 * time.Minute
	lastTimeout     = time.Minute
)

func newCheckpointer(t *control) *checkpointer {
	return &checkpointer{term: t, log: t.config.Log, one: newTurn(), failed: true, datasets: described{}}
}

// run takes a checkpoint whenever one is due, until ctx ends.
func (c *checkpointer) run(ctx context.Context) error {
	if c.cuts != nil {
		return c.cuts.run(ctx)
	}
	last, err := c.begun(ctx)
	if err != nil {
		return err
	}
	clock := c.term.Clock()
	var retry pace
	for ctx.Err() == nil {
		c.box.Take()
		now, err := c.term.progress(ctx)
		if err != nil {
			return err
		}
		if !c.due(now, last) {
			clock.Wait(ctx, c.box.Changed(), c.rest(now, last))
			continue
		}
		if retry.tooSoon(now.at) {
			clock.Wait(ctx, c.box.Changed(), retry.again.Sub(now.at))
			continue
		}
		if err := c.take(ctx); err != nil {
			retry.failed(c.term.Clock().Now(), err)
			continue
		}
		last, retry = &now, pace{}
	}
	return context.Cause(ctx)
}

// subscribe opens the mailbox of what can make a checkpoint due, besides time.
func (c *checkpointer) subscribe() {
	kinds := []taskqueue.EffectKind{taskqueue.OnPassClosed}
	if c.term.config.CheckpointEvery.Steps > 0 {
		kinds = append(kinds, taskqueue.OnStepCommitted)
	}
	if c.cuts != nil {
		kinds = append(kinds, taskqueue.OnBarrierHeld, taskqueue.OnCheckpointDue, taskqueue.OnRollbackDue, component.OnServersChanged)
	}
	c.box = c.term.Effects(kinds...)
}

// rest returns when time makes a checkpoint due that is not due now; negative: never.
func (c *checkpointer) rest(now progress, last *progress) time.Duration {
	if every := c.term.config.CheckpointEvery.Time; every > 0 && last != nil {
		return last.at.Add(every).Sub(now.at)
	}
	return -1
}

// due reports whether a set is due. last is the progress at the latest set, or nil if there is none. The first set is
// due immediately: without a set, servers that are all lost could return with parameters of different versions.
func (c *checkpointer) due(now progress, last *progress) bool {
	every := c.term.config.CheckpointEvery
	return every != (Cadence{}) && (last == nil || every.due(now, *last))
}

// begun is how far the job was at its latest set, whichever leader took it; nil: there is none.
func (c *checkpointer) begun(ctx context.Context) (*progress, error) {
	p, err := c.term.progress(ctx)
	if err != nil {
		return nil, err
	}
	set, _, err := c.term.config.Store.Value(ctx, LatestSetKey)
	for err != nil {
		c.log.WithError(err).Warn("the latest set of checkpoints is not known yet, asking again")
		if c.term.Clock().Sleep(ctx, checkpointRetry); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		set, _, err = c.term.config.Store.Value(ctx, LatestSetKey)
	}
	if set == nil {
		return nil, nil
	}
	at, err := c.term.config.Servers.SetAt(set)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", LatestSetKey, err)
	}
	p.steps = at.Version
	if at.Position != nil {
		p.at = p.at.Add(-max(0, p.clock.Sub(at.Position.Clock)))
		p.passes = 0
		for _, d := range at.Position.Datasets {
			p.passes += uint64(d.Pass)
		}
	}
	return &p, nil
}

// pace schedules retries of a failed cut. The pause grows, because the files of a failed set stay on the disk until a
// newer set is complete. A cut that left no files is retried soon.
type pace struct {
	again time.Time // not before
	pause time.Duration
}

func (p *pace) tooSoon(now time.Time) bool { return now.Before(p.again) }

func (p *pace) failed(now time.Time, err error) {
	p.pause = max(checkpointRetry, min(2*p.pause, checkpointPause))
	if errors.Is(err, ErrNothingToCut) || errors.Is(err, errNotFlushed) || errors.Is(err, ErrServerMissing) {
		p.pause = checkpointRetry
	}
	p.again = now.Add(p.pause)
}

// within is context.WithTimeout on the clock of the term.
func (c *checkpointer) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return c.term.Clock().WithTimeout(ctx, d)
}

// lastCheckpoint saves the final parameters of the job, after training has ended.
func (t *control) lastCheckpoint(ctx context.Context) {
	if t.checkpoints == nil || t.checkpoints.cuts != nil { // the last cut has all
		return
	}
	bounded, cancel := t.checkpoints.within(ctx, lastTimeout)
	defer cancel()
	_ = t.checkpoints.take(bounded) // take logs the error
}

// take takes a checkpoint, or logs why there is none. On failure the previous set stays.
func (c *checkpointer) take(ctx context.Context) error {
	if err := c.one.take(ctx); err != nil {
		return err
	}
	defer c.one.give()
	began := c.term.Clock().Now()
	if c.failed {
		c.discard(ctx) // of the term before, or what could not be removed
	}
	cut, err := c.complete(ctx)
	switch {
	case errors.Is(err, ErrNothingToCut):
		return err
	case err != nil && ctx.Err() != nil:
		return err
	case c.isBeforeFirst(ctx, err):
		if reason := err.Error(); reason != c.awaited {
			c.awaited = reason
			c.log.WithField("reason", reason).Info("waiting for parameter servers before the first checkpoint")
		}
		return err
	case err != nil:
		c.note(0, err)
		c.log.WithError(err).Error("checkpoint not complete: the set before it stays, training goes on")
		if !committer.Terminal(err) { // otherwise the next leader reads back the outcome
			c.discard(ctx)
		}
		return err
	}
	if _, ok := cut.(dataCut); ok {
		c.note(0, nil)
		return nil
	}
	c.note(cut.Number(), nil)
	c.log.WithFields(logrus.Fields{"set": cut.Number(), "took": c.term.since(began).Round(time.Millisecond)}).Info("checkpoint complete")
	bounded, cancel := c.within(ctx, writeTimeout)
	defer cancel()
	if err := cut.Prune(bounded, c.term.config.CheckpointKeep); err != nil && ctx.Err() == nil {
		c.log.WithError(err).Warn("older checkpoints not removed")
	}
	return nil
}

// isBeforeFirst reports whether a checkpoint failed because a parameter server has not been started yet: in a job without a set of
// checkpoints that is the normal order of things.
func (c *checkpointer) isBeforeFirst(ctx context.Context, err error) bool {
	if !errors.Is(err, ErrServerMissing) {
		return false
	}
	latest, _, err := c.term.config.Store.Value(ctx, LatestSetKey)
	return err == nil && latest == nil
}

// discard removes what failed sets have left.
func (c *checkpointer) discard(ctx context.Context) {
	c.failed = true
	latest, _, err := c.term.config.Store.Value(ctx, LatestSetKey)
	if err == nil {
		bounded, cancel := c.within(ctx, writeTimeout)
		defer cancel()
		err = c.term.config.Servers.Discard(bounded, uint64(c.term.Number()), latest)
	}
	if err != nil {
		if ctx.Err() == nil {
			c.log.WithError(err).Debug("what failed sets have left is not removed yet")
		}
		return
	}
	c.failed = false
}

// complete returns a cut whose set is complete and named in the store.
func (c *checkpointer) complete(ctx context.Context) (Cut, error) {
	cut, at, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	bounded, cancel := c.within(ctx, writeTimeout)
	defer cancel()
	var set []byte
	about, err := c.about(bounded, at, cut.Number())
	if err == nil {
		//guard:set-names-its-predecessor
		about.After, err = c.before(bounded)
	}
	if err == nil {
		set, err = cut.Write(bounded, about)
	}
	switch {
	case err != nil:
	case c.cuts != nil:
		err = c.cuts.publish(ctx, cut.Number(), set)
	default:
		err = publish(ctx, c.term, taskqueue.Write{Key: LatestSetKey, Value: set})
	}
	if err != nil {
		bounded, cancel := c.within(context.WithoutCancel(ctx), beginTimeout)
		defer cancel()
		return nil, errors.Join(err, cut.Abort(bounded))
	}
	return cut, nil
}

// before returns the number of the set that the store names; 0: none. A damaged name is no error here: servers that load the set
// report it, and the next set replaces it.
func (c *checkpointer) before(ctx context.Context) (uint64, error) {
	set, _, err := c.term.config.Store.Value(ctx, LatestSetKey)
	if err != nil || set == nil {
		return 0, err
	}
	at, err := c.term.config.Servers.SetAt(set)
	if err != nil {
		return 0, nil //nolint:nilerr // see above
	}
	return at.Number, nil
}

// begin fixes the moments of all servers.
func (c *checkpointer) begin(ctx context.Context) (Cut, *moment, error) {
	if c.cuts != nil {
		return c.cuts.begin(ctx)
	}
	ctx, cancel := c.within(ctx, beginTimeout)
	defer cancel()
	at, err := c.term.moment(ctx) // before the cut: the servers then have all that is counted
	if err != nil {
		return nil, nil, err
	}
	cut, err := c.term.config.Servers.Begin(ctx, uint64(c.term.Number()), at.position.Epoch, func(last uint64) uint64 { return last + 1 })
	return cut, at, err
}

func (c *checkpointer) note(set uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure = ""; err != nil {
		c.failure = err.Error()
		return
	}
	c.set, c.at = set, c.term.Clock().Now()
}

func (c *checkpointer) status() CheckpointStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := CheckpointStatus{Set: c.set, Failure: c.failure}
	if c.set > 0 {
		s.Age = c.term.since(c.at)
	}
	return s
}

// turn is a lock that a context can cancel. The holder sends a step to the servers or fixes a cut.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // if both cases are ready, select chooses at random, and simulated histories differ
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t turn) give() { <-t }

// progress says how far the job is.
func (t *control) progress(ctx context.Context) (p progress, err error) {
	err = t.Read(ctx, func(q *taskqueue.Queue) {
		for _, set := range q.Overview().Sets {
			p.passes += uint64(set.Pass)
		}
		last, _ := q.SyncStep()
		p.steps = last.Version
		p.clock = q.Clock()
	})
	p.at = t.Clock().Now()
	return p, err
}

// publish writes keys in one transaction with the state.
func publish(ctx context.Context, t component.Term, writes ...taskqueue.Write) error {
	_, err := t.Submit(ctx, &taskqueue.StoreKeys{Writes: writes})
	return err
}
