package master

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// term is one leadership: everything in it ends when the lock is lost.
type term struct {
	*committer.Committer
	announced atomic.Bool
}

var _ component.Term = (*term)(nil)

// Submit applies an event. It returns [ErrRejoin] if the trainer of the event has no session.
func (t *term) Submit(ctx context.Context, ev taskqueue.Event) (taskqueue.Answer, error) {
	a, err := t.Committer.Submit(ctx, ev)
	if err == nil && a.Kind == taskqueue.AnswerRejoin {
		err = ErrRejoin
	}
	return a, err
}

// lead recovers the state and serves until the term ends. It returns nil if the job has ended and its trainers have been
// informed.
func (m *Master) lead(ctx context.Context, lead store.Leadership, kept *committer.TableCache) error {
	if err := m.config.Store.EnsureJob(ctx, m.config.Job, m.config.Settings()); err != nil {
		return err
	}
	c, err := committer.Recover(ctx, lead, m.config.Committer(), kept, m.election.Heard, m.termOver)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t := &term{Committer: c}
	m.election.Leads(lead.Revision())
	for _, part := range m.components {
		if err := component.Contain(m.config.Log, part.Name(), func() error { return part.Prepare(ctx, t) }); err != nil {
			return err
		}
	}
	m.current.Store(t) // stored before the announcement: early requests wait for the committer and are not rejected
	defer m.termOver()
	if err := m.announce(ctx, lead); err != nil {
		c.End(err)
		return err
	}
	t.announced.Store(true)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Run(ctx) })
	for _, part := range m.components {
		group.Go(func() error {
			return component.Contain(m.config.Log, part.Name(), func() error { return part.Run(ctx, t) })
		})
	}
	m.config.Log.WithField("term", lead.Revision()).Info("leading")
	if err := group.Wait(); !errors.Is(err, errJobOver) {
		return err
	}
	if status, reason := c.Status(); status == taskqueue.Failed {
		return fmt.Errorf("%w: %s", ErrJobFailed, reason)
	}
	return nil
}

// announce publishes the address of the leader. If the lock is lost, announce returns early.
func (m *Master) announce(ctx context.Context, lead store.Leadership) error {
	ctx, release := committer.WhileHeld(ctx, lead)
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

// termOver hides the term and ends it for the faces.
func (m *Master) termOver() {
	m.election.Leads(0)
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
