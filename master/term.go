package master

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

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
	defer m.termOver()
	t, err := m.begin(ctx, lead, kept)
	if err != nil {
		return err
	}
	group, running := errgroup.WithContext(context.WithoutCancel(ctx))
	group.Go(func() error { return t.Committer.Run(running) })
	for _, part := range m.components {
		group.Go(func() error {
			return component.Contain(m.config.Log, part.Name(), func() error { return part.Run(running, t) })
		})
	}
	group.Go(func() error {
		select {
		case <-ctx.Done():
			//guard:leader-that-stops-takes-set
			m.config.Servers.LastCheckpoint(running)
		case <-running.Done():
		}
		return context.Cause(ctx)
	})
	m.config.Log.WithField("term", lead.Revision()).Info("leading")
	if err := group.Wait(); !errors.Is(err, errJobEnded) {
		return err
	}
	if status, reason := t.Status(); status == taskqueue.Failed {
		return fmt.Errorf("%w: %s", ErrJobFailed, reason)
	}
	return nil
}

// begin recovers the state, prepares the components and announces the term. It returns early if the lock is lost, also while the store does
// not answer.
func (m *Master) begin(ctx context.Context, lead store.Leadership, kept *committer.TableCache) (t *term, err error) {
	//guard:lost-lock-ends-beginning
	ctx, release := committer.WhileHeld(ctx, lead)
	defer release()
	defer func() {
		if err != nil && context.Cause(ctx) != nil {
			err = context.Cause(ctx)
		}
	}()
	if err := m.config.Store.EnsureJob(ctx, m.config.Job, m.config.Settings()); err != nil {
		return nil, err
	}
	c, err := committer.Recover(ctx, lead, m.config.Committer(), kept, m.election.EtcdAnswered, m.termOver)
	if err != nil {
		return nil, err
	}
	t = &term{Committer: c}
	id := t.JobID()
	m.jobID.Store(&id) // before the components, which call parameter servers
	m.election.Leads(lead.Revision())
	for _, part := range m.components {
		if err := m.prepare(ctx, part, t, lead.TTL()); err != nil {
			return nil, err
		}
	}
	m.current.Store(t) // stored before the announcement: early requests wait for the committer and are not rejected
	if err := lead.Announce(ctx, m.config.Advertise, uint64(lead.Revision())); err != nil {
		c.End(err)
		return nil, fmt.Errorf("announce: %w", err)
	}
	t.announced.Store(true)
	return t, nil
}

// prepare prepares a component within limit: a store that answers only the keep-alives of the lease must not hold the lock without a term.
func (m *Master) prepare(ctx context.Context, part component.Component, t *term, limit time.Duration) error {
	//guard:prepare-time-limit
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	err := component.Contain(m.config.Log, part.Name(), func() error { return part.Prepare(ctx, t) })
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("prepare %s: %w", part.Name(), err)
	}
	return nil
}

// termOver hides the term and ends it for the network APIs.
func (m *Master) termOver() {
	m.election.Leads(0)
	if m.current.Swap(nil) == nil {
		return
	}
	//guard:term-end-closes-connections
	m.endTermDone()
}

// endTermDone closes the channel of TermDone and makes a channel for the next term.
func (m *Master) endTermDone() {
	next := make(chan struct{})
	close(*m.ended.Swap(&next))
}
