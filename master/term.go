package master

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"trainmaster/ledger"
	"trainmaster/master/component"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// term is one leadership: everything in it ends when the lock is lost.
type term struct {
	committer *committer
	jobID     [16]byte
	announced atomic.Bool
}

var _ component.Term = (*term)(nil)

func newTerm(c *committer) *term { return &term{committer: c, jobID: c.queue.JobID()} }

// Number implements [component.Term].
func (t *term) Number() int64 { return t.committer.lead.Revision() }

// JobID implements [component.Term].
func (t *term) JobID() [16]byte { return t.jobID }

// Clock implements [component.Term].
func (t *term) Clock() component.Clock { return t.committer.time }

// Submit applies an event. It returns [ErrRejoin] if the trainer of the event has no session.
func (t *term) Submit(ctx context.Context, ev taskqueue.Event) (taskqueue.Answer, error) {
	a, err := t.committer.submit(ctx, request{event: ev})
	if err == nil && a.Kind == taskqueue.AnswerRejoin {
		err = ErrRejoin
	}
	return a, err
}

// Wait implements [component.Term].
func (t *term) Wait(ctx context.Context, ev taskqueue.Event) (taskqueue.Answer, error) {
	return t.committer.submit(ctx, request{event: ev, patient: true})
}

// Read implements [component.Term].
func (t *term) Read(ctx context.Context, look func(*taskqueue.Queue)) error {
	_, err := t.committer.submit(ctx, request{read: look})
	return err
}

// Roster implements [component.Term].
func (t *term) Roster() map[string][]byte { return t.committer.roster }

// Effects implements [component.Term].
func (t *term) Effects(kinds ...taskqueue.EffectKind) *component.Mailbox {
	return t.committer.subscribe(kinds...)
}

// Post implements [component.Term].
func (t *term) Post(e taskqueue.Effect) { t.committer.post(e) }

// Progress implements [component.Term].
func (t *term) Progress() ledger.Progress {
	return ledger.Progress{Commit: t.committer.number.Load(), Bytes: t.committer.ledgerBytes.Load()}
}

// Lock implements [component.Term].
func (t *term) Lock() ledger.Lock { return t.committer.lead }

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
	t := newTerm(c)
	m.fresh.term.Store(lead.Revision())
	if m.config.Sync {
		if err := latestVersion(ctx, m.config, s); err != nil {
			return err
		}
	}
	for _, part := range m.components {
		if err := part.Prepare(ctx, t); err != nil {
			return err
		}
	}
	m.current.Store(t) // stored before the announcement: early requests wait for the committer and are not rejected
	defer m.termOver()
	if err := m.announce(ctx, lead); err != nil {
		c.end(err)
		return err
	}
	t.announced.Store(true)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.run(ctx) })
	for _, part := range m.components {
		group.Go(func() error { return part.Run(ctx, t) })
	}
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
