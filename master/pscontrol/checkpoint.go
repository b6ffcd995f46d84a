package pscontrol

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

var (
	// ErrNothingToCut reports that the parameter servers have no parameters or keep no checkpoints, or that the job has no servers.
	ErrNothingToCut = errors.New("there is nothing to take a checkpoint of")
	// ErrServerMissing reports that a parameter server of the job is not registered.
	ErrServerMissing = errors.New("is not there")
	// ErrServerNotReady reports that a parameter server has not loaded or received its parameters.
	ErrServerNotReady = errors.New("has no parameters yet")
)

// Cut is a consistent point of all parameter servers.
type Cut interface {
	Number() uint64
	// Write returns the manifest of the checkpoint set when all files of the set are on the disk.
	Write(ctx context.Context, about About) (set []byte, err error)
	// Abort drops the cut.
	Abort(ctx context.Context) error
	// Prune removes what is older than the newest sets to keep, except spared sets.
	Prune(ctx context.Context, keep int, spared []uint64) error
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
	term      *term
	rollbacks *rollbacks // cuts of data and parameters; nil: the checkpoints have the parameters alone

	busy     component.Semaphore // held during a checkpoint, a rollback or a migration
	failed   bool                // the files of an incomplete set may remain on the disks
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
	hastenedPause   = 5 * time.Second
	beginTimeout    = 10 * time.Second
	writeTimeout    = 10 * time.Minute
	lastTimeout     = time.Minute
)

func newCheckpointer(t *term) *checkpointer {
	c := &checkpointer{term: t, busy: component.NewSemaphore(), failed: true, datasets: described{}}
	if t.config.Cuts {
		c.rollbacks = &rollbacks{checkpointer: c}
	}
	return c
}

// Checkpoints returns the components that take checkpoints; nil: the job has no parameter servers, and no cuts.
func (c *Control) Checkpoints() []component.Component {
	var list []component.Component
	switch _, hasNone := c.config.Servers.(None); {
	case c.config.Cuts && c.config.CheckpointEvery == (Cadence{}): // the queue asks for cuts
	case hasNone && !c.config.Cuts:
		return nil
	default:
		list = append(list, c.cadence())
	}
	kinds := []taskqueue.EffectKind{component.OnCheckpointDue, component.OnServersChanged}
	if c.config.Cuts {
		kinds = append(kinds, taskqueue.OnBarrierHeld, taskqueue.OnCheckpointDue, taskqueue.OnRollbackDue)
	}
	return append(list, &part{Control: c, name: "checkpoints", on: kinds, run: func(ctx context.Context, t *term, box *component.Mailbox) error {
		return t.checkpoints.run(ctx, box)
	}})
}

// run takes checkpoints and rolls the job back as required until ctx ends. It checks the servers when one registers or asks for a
// set; in a job with cuts also when a cut or a rollback is due, and after resendEvery.
func (c *checkpointer) run(ctx context.Context, box *component.Mailbox) error {
	latest, err := c.begun(ctx)
	if err != nil {
		return err
	}
	done, due := checkpointDone{1, latest}, checkpointDue{}
	c.term.Post(done)
	clock := c.term.Clock()
	var retry backoff
	var looked time.Time // zero: look at the servers now
	asked := true        // servers may want a set
	for rest := time.Duration(0); ; {
		clock.Wait(ctx, box.Changed(), rest)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, e := range box.Take() {
			switch e := e.(type) {
			case component.ServersChanged:
				looked, asked = time.Time{}, true
				retry.hasten()
			case checkpointDue:
				due = e
			}
		}
		now, steps, err := c.term.stepsDue(ctx)
		if err != nil {
			return err
		}
		if steps.Release { // of a leader that died, or etcd refused it
			if err := c.release(ctx); err != nil {
				//guard:refused-release-retried
				c.term.config.Log.WithError(err).Warn("trainers not released after a cut, retrying")
				clock.Sleep(ctx, checkpointRetry)
			}
			rest = 0
			continue
		}
		if rest = retry.again.Sub(now.at); rest > 0 {
			continue
		}
		isDue := steps.Commit || due.after == done.number
		//guard:set-on-request
		if asked && !isDue && c.rollbacks == nil {
			if asked, err = c.isWanted(ctx); err != nil {
				rest, asked = statesRetry, true
				continue
			}
			isDue = asked
		}
		if rest = c.untilLook(now.at, looked); rest != 0 && !isDue && !steps.Rollback {
			continue
		}
		looked, rest = now.at, 0
		switch taken, err := c.step(ctx, steps.Rollback, isDue); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			retry.failed(clock.Now(), err)
		case taken:
			done, retry, asked = checkpointDone{done.number + 1, &now}, backoff{}, false
			c.term.Post(done)
		default: // a server may be missing, or not have taken a rollback yet
			rest = statesRetry
		}
	}
}

// release releases trainers that the cut of an earlier leader holds, or a cut whose release etcd refused. A cut of another component,
// which holds busy, releases its trainers itself. If they were released before all servers have fixed the cut, they could make a step.
// The servers' part of the cut would have that step, and the trainers' part would not.
func (c *checkpointer) release(ctx context.Context) error {
	//guard:release-waits-for-the-cut
	if err := c.busy.Acquire(ctx); err != nil {
		return err
	}
	defer c.busy.Release()
	if due, err := read(ctx, c.term, (*taskqueue.Queue).StepsDue); err != nil || !due.Release {
		return err
	}
	return c.rollbacks.event(ctx, &taskqueue.CutRelease{})
}

// stepsDue returns the progress of the job. In a job with cuts it also returns what the queue asks for.
func (t *term) stepsDue(ctx context.Context) (now progress, due taskqueue.StepsDue, err error) {
	if now, err = t.progress(ctx); err == nil && t.config.Cuts {
		due, err = read(ctx, t, (*taskqueue.Queue).StepsDue)
	}
	return now, due, err
}

// untilLook returns the time until the servers are checked although nothing is due; negative: never, in a job without rollback.
func (c *checkpointer) untilLook(now, looked time.Time) time.Duration {
	if c.rollbacks == nil {
		return -1
	}
	return max(0, resendEvery-now.Sub(looked))
}

// isWanted reports whether a server wants a set: it has its first parameters, or it stops.
func (c *checkpointer) isWanted(ctx context.Context) (bool, error) {
	ctx, cancel := c.term.within(ctx, beginTimeout)
	defer cancel()
	states, err := c.term.config.Servers.States(ctx)
	if slices.ContainsFunc(states, func(s ServerState) bool { return s.WantsSet }) {
		return true, nil
	}
	return false, err
}

// step rolls the job back if it must, or takes a checkpoint if one is due.
func (c *checkpointer) step(ctx context.Context, isLost, isDue bool) (taken bool, err error) {
	if c.rollbacks != nil {
		if isDue, err = c.rollbacks.look(ctx, isLost, isDue); err != nil || !isDue {
			return false, err
		}
	}
	return true, c.take(ctx)
}

// errDamagedName reports that the manifest under [LatestSetKey] cannot be read.
var errDamagedName = errors.New("read " + LatestSetKey)

// latestSet returns the set that the store names, and its cut; nil: it names none.
func (t *term) latestSet(ctx context.Context) (set []byte, at SetAt, err error) {
	set, _, err = t.config.Store.Value(ctx, LatestSetKey)
	if err == nil && set != nil {
		if at, err = t.config.Servers.SetAt(set); err != nil {
			err = fmt.Errorf("%w: %w", errDamagedName, err)
		}
	}
	return set, at, err
}

// begun is how far the job was at its latest set, whichever leader took it; nil: there is none.
func (c *checkpointer) begun(ctx context.Context) (*progress, error) {
	p, err := c.term.progress(ctx)
	if err != nil {
		return nil, err
	}
	set, at, err := c.term.latestSet(ctx)
	for err != nil && !errors.Is(err, errDamagedName) {
		c.term.config.Log.WithError(err).Warn("latest checkpoint set not read, retrying")
		if c.term.Clock().Sleep(ctx, checkpointRetry); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		set, at, err = c.term.latestSet(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: name a complete set: master checkpoint use SET", err)
	}
	if set == nil {
		return nil, nil
	}
	p.steps = at.Version
	if at.Position != nil {
		p.at = p.at.Add(-max(0, p.clock.Sub(at.Position.Clock)))
		p.passes = 0
		for _, d := range at.Position.Datasets {
			if d.Kind == taskqueue.Training {
				p.passes += uint64(d.Pass)
			}
		}
	}
	return &p, nil
}

// backoff schedules retries of a failed cut. The pause grows, because the files of a failed set stay on the disk until a
// newer set is complete. A cut that left no files is retried soon.
type backoff struct {
	last  time.Time // failure
	again time.Time // not before
	pause time.Duration
}

// hasten shortens the pause when the registry has changed: a server may have started, or stops and waits for a set. The pause does not
// end, because a server that waits for a set changes the registry with each request.
func (p *backoff) hasten() {
	//guard:failed-sets-have-pauses
	if soon := p.last.Add(min(p.pause, hastenedPause)); soon.Before(p.again) {
		p.again = soon
	}
}

func (p *backoff) failed(now time.Time, err error) {
	p.pause = max(checkpointRetry, min(2*p.pause, checkpointPause))
	if errors.Is(err, ErrNothingToCut) || errors.Is(err, errNotFlushed) || errors.Is(err, ErrServerMissing) {
		p.pause = checkpointRetry
	}
	p.last, p.again = now, now.Add(p.pause)
}

// take takes a checkpoint, or logs why there is none. On failure the previous set stays.
func (c *checkpointer) take(ctx context.Context) error {
	if err := c.busy.Acquire(ctx); err != nil {
		return err
	}
	defer c.busy.Release()
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
			c.term.config.Log.WithField("reason", reason).Info("waiting for parameter servers before the first checkpoint")
		}
		return err
	case err != nil:
		c.note(0, err)
		c.term.config.Log.WithError(err).Error("checkpoint not complete: the set before it stays, training goes on")
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
	c.term.config.Log.WithFields(logrus.Fields{"set": cut.Number(), "took": c.term.since(began).Round(time.Millisecond)}).Info("checkpoint complete")
	bounded, cancel := c.term.within(ctx, writeTimeout)
	defer cancel()
	if err := c.prune(bounded, cut); err != nil && ctx.Err() == nil {
		c.term.config.Log.WithError(err).Warn("older checkpoints not removed")
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
		bounded, cancel := c.term.within(ctx, writeTimeout)
		defer cancel()
		err = c.term.config.Servers.Discard(bounded, uint64(c.term.Number()), latest)
	}
	if err != nil {
		if ctx.Err() == nil {
			c.term.config.Log.WithError(err).Debug("what failed sets have left is not removed yet")
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
	bounded, cancel := c.term.within(ctx, writeTimeout)
	defer cancel()
	var set []byte
	about, err := c.about(bounded, at, cut.Number())
	if err == nil {
		var before SetAt
		_, before, err = c.term.latestSet(bounded)
		about.After = before.Number //guard:set-names-its-predecessor
	}
	if err == nil || errors.Is(err, errDamagedName) { // servers that load the set report it, and the next set replaces it
		set, err = cut.Write(bounded, about)
	}
	switch {
	case err != nil:
	case c.rollbacks != nil:
		err = c.rollbacks.publish(ctx, cut.Number(), set)
	default:
		err = c.term.publish(ctx, taskqueue.Write{Key: LatestSetKey, Value: set})
	}
	if err != nil {
		bounded, cancel := c.term.within(context.WithoutCancel(ctx), beginTimeout)
		defer cancel()
		return nil, errors.Join(err, cut.Abort(bounded))
	}
	return cut, nil
}

// begin fixes the cut on all servers.
func (c *checkpointer) begin(ctx context.Context) (Cut, *jobSnapshot, error) {
	if c.rollbacks != nil {
		return c.rollbacks.begin(ctx)
	}
	ctx, cancel := c.term.within(ctx, beginTimeout)
	defer cancel()
	at, err := c.term.jobSnapshot(ctx) // before the cut: the servers then have all that is counted
	if err != nil {
		return nil, nil, err
	}
	latest, err := c.usable(ctx, at.head.JobID)
	if err != nil {
		return nil, nil, err
	}
	cut, err := c.term.config.Servers.Begin(ctx, CutRequest{
		Term: uint64(c.term.Number()), Epoch: at.position.Epoch, Number: func(last uint64) uint64 { return last + 1 }, Latest: latest,
	})
	return cut, at, err
}

// usable returns the set that the store names if its parts can be in the next set; nil: they cannot. Parts of another job count the
// steps of other trainers.
func (c *checkpointer) usable(ctx context.Context, jobID string) ([]byte, error) {
	latest, at, err := c.term.latestSet(ctx)
	//guard:parts-of-this-job-only
	if errors.Is(err, errDamagedName) || err == nil && at.JobID != jobID {
		return nil, nil // servers that load a damaged name report it
	}
	return latest, err
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
