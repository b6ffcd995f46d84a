package master

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// term is one leadership: everything in it ends when the lock is lost.
type term struct {
	config      Config
	committer   *committer
	jobID       [16]byte
	announced   atomic.Bool
	checkpoints *checkpointer // nil: none are taken
	scaler      *scaler
	unused      unusedParts
	catching    turn                        // to catch up with the version of the parameter servers
	faults      atomic.Pointer[ShardFaults] // of parameter servers; nil: none is known
	stageRoom   atomic.Pointer[string]      // why no synchronous step can be complete; "" or nil: it can
}

func newTerm(config Config, c *committer) *term {
	return &term{config: config, committer: c, jobID: c.queue.JobID(), catching: newTurn()}
}

// lead recovers the state and serves until the term ends. It returns nil if the job is over and its trainers have been
// informed.
func (m *Master) lead(ctx context.Context, lead store.Leadership, kept *warm) error {
	if err := m.config.Store.EnsureJob(ctx, m.config.Job, m.config.Settings()); err != nil {
		return err
	}
	s, err := recoverState(ctx, lead, m.config, kept, m.fresh.heard)
	if err != nil {
		return err
	}
	c := newCommitter(s)
	c.over = m.termOver
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t := newTerm(m.config, c)
	if err := m.checkLedger(ctx, hex.EncodeToString(t.jobID[:])); err != nil {
		return err
	}
	m.fresh.term.Store(lead.Revision())
	if m.config.Begun != nil {
		if err := m.config.Begun(ctx); err != nil {
			return err
		}
	}
	if m.config.Sync {
		if err := latestVersion(ctx, m.config, s); err != nil {
			return err
		}
	}
	telling := newTurn()
	checkpoints := newCheckpointer(t, telling)
	if t.scaler, err = recoverScaler(ctx, t, checkpoints); err != nil {
		return err
	}
	if m.config.CheckpointEvery != (Cadence{}) || m.config.Queue.Cuts {
		t.checkpoints = checkpoints
	}
	if m.config.Queue.Cuts {
		checkpoints.cuts = &rewinding{checkpointer: checkpoints, placed: t.scaler.committed}
	}
	ended, retired := c.subscribe(taskqueue.OnJobEnded, taskqueue.OnSessionsChanged), c.subscribe(taskqueue.OnSessionsChanged, onServersChanged)
	steps := c.subscribe(taskqueue.OnStepCommitted, onServersChanged)
	checkpoints.subscribe()
	t.scaler.box = c.subscribe(onServersChanged)
	m.current.Store(t) // stored before the announcement: early requests wait for the committer and are not rejected
	defer m.termOver()
	if err := m.announce(ctx, lead); err != nil {
		c.end(err)
		return err
	}
	t.announced.Store(true)
	group, ctx := errgroup.WithContext(ctx)
	if m.config.Sync {
		group.Go(func() error { return t.tellShards(ctx, steps, telling) })
		group.Go(func() error { return t.watchStageRoom(ctx) })
	}
	if t.checkpoints != nil {
		group.Go(func() error { return t.checkpoints.run(ctx) })
	}
	group.Go(func() error { return t.scaler.run(ctx) })
	group.Go(func() error { return t.watchFaults(ctx) })
	group.Go(func() error { return t.retire(ctx, retired) })
	if m.config.Registry != nil {
		group.Go(func() error {
			return (&attendance{m.config.Registry, m.config.Log, func() { c.post(serversChanged{}) }}).run(ctx)
		})
	}
	group.Go(func() error { return c.run(ctx) })
	group.Go(func() error { return t.awaitEnd(ctx, ended, m.config.Linger) })
	group.Go(func() error { return t.unused.run(ctx, t) })
	group.Go(func() error { return m.seal(ctx, t) })
	m.config.Log.WithField("term", lead.Revision()).Info("leading")
	if err := group.Wait(); !errors.Is(err, errJobOver) {
		return err
	}
	if status, reason := s.queue.Status(); status == taskqueue.Failed {
		return fmt.Errorf("%w: %s", ErrJobFailed, reason)
	}
	return nil
}

// announce publishes the address of the leader. If the lock is lost, announce returns early.
func (m *Master) announce(ctx context.Context, lead store.Leadership) error {
	ctx, release := whileHeld(ctx, lead)
	defer release()
	err := lead.Announce(ctx, m.config.Advertise, uint64(lead.Revision()))
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	return nil
}

// whileHeld is a context that ends with the lock, and with parent. release must be called.
func whileHeld(parent context.Context, lead store.Leadership) (held context.Context, release func()) {
	held, cancel := context.WithCancelCause(parent)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-lead.Lost():
			cancel(fmt.Errorf("%w: the lock is lost", taskqueue.ErrFenced))
		case <-held.Done():
		}
	})
	return held, func() {
		cancel(nil)
		watch.Wait()
	}
}

var errJobOver = errors.New("the job is over")

// awaitEnd returns errJobOver when the job has ended and all sessions have ended, or when the linger has passed. It
// waits longer for a trainer that saves the model.
func (t *term) awaitEnd(ctx context.Context, ended *mailbox, linger time.Duration) error {
	clock := t.committer.time
	var deadline time.Time // end of the linger; zero: the job is running
	rest := time.Duration(-1)
	for {
		clock.Wait(ctx, ended.changed, rest)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		ended.take()
		var over bool
		var trainers int
		var saving time.Duration
		if err := t.inspect(ctx, func(q *taskqueue.Queue) {
			status, _ := q.Status()
			over, trainers, saving = status == taskqueue.Ended || status == taskqueue.Failed, q.Trainers(), q.Saving()
		}); err != nil {
			return err
		}
		if !over {
			continue
		}
		now := clock.Now()
		if deadline.IsZero() {
			deadline = now.Add(linger)
		}
		rest = deadline.Sub(now)
		if rest <= 0 && saving > 0 {
			rest = max(saving, tickEvery) // the job clock may not advance
		}
		if trainers == 0 || rest <= 0 {
			t.lastCheckpoint(ctx)
			return errJobOver
		}
	}
}

// inspect calls look with the committed queue.
func (t *term) inspect(ctx context.Context, look func(*taskqueue.Queue)) error {
	_, err := t.committer.submit(ctx, request{read: look})
	return err
}

// latestVersion continues from the latest checkpoint set if the last step is older: parameters never go back to an earlier version.
func latestVersion(ctx context.Context, config Config, s *state) error {
	set, _, err := config.Store.Value(ctx, LatestSetKey)
	if err != nil || set == nil {
		return err
	}
	at, err := config.Servers.SetAt(set)
	if err != nil {
		return fmt.Errorf("read %s: %w", LatestSetKey, err)
	}
	if last, _ := s.queue.SyncStep(); at.Version > last.Version {
		return s.setStep(taskqueue.Step{Version: at.Version, Epoch: last.Epoch}.Encode())
	}
	return nil
}

// catchUp queries the version of the parameters when a trainer has staged at a version that is unknown to this job.
func (t *term) catchUp(ctx context.Context, version uint64) error {
	if err := t.catching.take(ctx); err != nil { // one asks for all
		return err
	}
	defer t.catching.give()
	var last taskqueue.Step
	if err := t.inspect(ctx, func(q *taskqueue.Queue) { last, _ = q.SyncStep() }); err != nil || version <= last.Version {
		return err
	}
	bounded, cancel := t.committer.time.WithTimeout(ctx, stepTimeout)
	defer cancel()
	reached, err := t.config.Servers.Version(bounded)
	if err != nil {
		return fmt.Errorf("staged at version %d, and only version %d is known: ask the parameter servers: %w", version, last.Version, err)
	}
	return t.serversAhead(ctx, reached)
}

// serversAhead continues from the version that a server has, if it is later than the last step. The steps of this term are committed
// before any server receives them, so a later version is not one of them.
func (t *term) serversAhead(ctx context.Context, reached uint64) error {
	_, err := t.apply(ctx, &taskqueue.ServersAhead{Version: reached})
	return err
}

// tellShards sends the newest committed step to the parameter servers, and again when a server registers, after an error, and after
// resendEvery. Servers that have it ignore it. If a server is ahead, the job continues from its version, so that trainers find one
// version on all servers. In a job that rolls back as a whole, the servers roll back instead.
func (t *term) tellShards(ctx context.Context, steps *mailbox, telling turn) error {
	follows := !t.config.Queue.Cuts
	var last taskqueue.Step
	rest := time.Duration(0)
	for ; ctx.Err() == nil; t.committer.time.Wait(ctx, steps.changed, rest) {
		for _, e := range steps.take() {
			if step, ok := e.(taskqueue.StepCommitted); ok {
				last = step.Step
			}
		}
		rest = resendEvery
		if last.Version == 0 && !follows {
			continue
		}
		reached, err := t.tell(ctx, last, telling)
		//guard:servers-ahead-followed
		if follows && reached > last.Version {
			err = errors.Join(err, t.serversAhead(ctx, reached))
		}
		if err != nil {
			rest = stepRetry
		}
		if err != nil && ctx.Err() == nil && max(last.Version, reached) > 0 {
			t.config.Log.WithError(err).WithField("version", last.Version).Warn("telling the parameter servers of a step, trying again")
		}
	}
	return context.Cause(ctx)
}

// tell takes the turn and sends a step to the servers. Version 0 is a query without the turn.
func (t *term) tell(ctx context.Context, step taskqueue.Step, telling turn) (reached uint64, err error) {
	if step.Version > 0 {
		if err := telling.take(ctx); err != nil {
			return 0, err
		}
		defer telling.give()
	}
	bounded, cancel := t.committer.time.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return t.config.Servers.CommitStep(bounded, step)
}

const (
	stepRetry   = 500 * time.Millisecond
	stepTimeout = 10 * time.Second
)

// termOver hides the term and ends it for the faces.
func (m *Master) termOver() {
	m.fresh.term.Store(0)
	if m.current.Swap(nil) == nil {
		return
	}
	//guard:term-end-closes-connections
	m.endTermDone()
}

// endTermDone closes the channel of TermDone and opens that of the next term.
func (m *Master) endTermDone() {
	next := make(chan struct{})
	close(*m.ended.Swap(&next))
}
