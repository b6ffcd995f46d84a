package reference

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// supply fetches tasks for a member of a ring. It joins again after the loss of a session. One fetch is in progress at a time; between two fetches the
// client belongs to the caller. It has no lock: one goroutine calls its methods.
type supply struct {
	worker  *Worker
	ctx     context.Context
	current *atomic.Pointer[currentModel]

	// client belongs to the fetch in progress. nil: there is no session.
	client *trainer.Client
	// fetched has the outcome of the fetch in progress. nil: there is none.
	fetched chan supplied
	cancel  context.CancelFunc
	ended   chan struct{} // closes when the job has ended
	ending  sync.Once

	began  time.Time // of the session
	rivals rivals
}

type supplied struct {
	task *taskqueue.Task
	err  error
}

// outcome is the end of a task. The zero value is no task.
type outcome struct {
	finished *taskqueue.Task
	failed   *taskqueue.Task
	reason   error
}

// fetch reports the outcome of a task, and fetches the next.
func (s *supply) fetch(o outcome) {
	ctx, cancel := context.WithCancel(s.ctx)
	fetched := make(chan supplied, 1)
	s.fetched, s.cancel = fetched, cancel
	go func() {
		task, err := s.next(ctx, o)
		if errors.Is(err, io.EOF) {
			s.ending.Do(func() { close(s.ended) })
		}
		fetched <- supplied{task, err}
	}()
}

// take returns the outcome of the fetch in progress, if there is one within wait.
func (s *supply) take(ctx context.Context, wait time.Duration) (r supplied, ok bool) {
	select {
	case r = <-s.fetched:
	default:
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case r = <-s.fetched:
		case <-timer.C:
			return r, false
		case <-ctx.Done():
			return supplied{err: context.Cause(ctx)}, true
		}
	}
	s.cancel()
	s.fetched = nil
	return r, true
}

// next joins if there is no session, and returns the next task.
func (s *supply) next(ctx context.Context, o outcome) (*taskqueue.Task, error) {
	for {
		if s.client == nil {
			client, err := s.worker.join(ctx, s.current)
			if err != nil {
				return nil, err
			}
			s.client, s.began = client, time.Now()
		}
		task, err := s.ask(ctx, o)
		switch {
		case errors.Is(err, trainer.ErrSessionLost), errors.Is(err, trainer.ErrRolledBack):
			if err := s.rivals.lost(s.worker.Trainer.ID, s.began); err != nil {
				return nil, err
			}
			s.worker.Log.WithField("reason", err).Warn("the session was lost, joining again")
			s.close()
			o = outcome{} // the master has dispatched the task to another trainer
		default:
			return task, err
		}
	}
}

func (s *supply) ask(ctx context.Context, o outcome) (*taskqueue.Task, error) {
	if o.failed != nil {
		if err := s.client.Fail(ctx, o.failed, o.reason); err != nil {
			return nil, err
		}
	}
	return s.client.Next(ctx, o.finished)
}

// close ends the session: the master returns its tasks to the queue.
func (s *supply) close() {
	if s.client == nil {
		return
	}
	if err := s.client.Close(); err != nil {
		s.worker.Log.WithError(err).Debug("leave not sent to the master")
	}
	s.client = nil
}

// settle waits until the fetch in progress has ended, at most the given time. The client then belongs to the caller.
func (s *supply) settle(wait time.Duration) {
	if s.fetched == nil {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-s.fetched:
		s.cancel()
	case <-timer.C:
		s.cancel()
		<-s.fetched
	}
	s.fetched = nil
}

// release ends the fetch in progress and the session.
func (s *supply) release() {
	s.settle(0)
	s.close()
}
