package pods

import (
	"context"

	"github.com/sirupsen/logrus"

	"trainmaster/master/committer"
	"trainmaster/master/podmanager"
	"trainmaster/taskqueue"
)

// ErrLimits is wrapped by the error of [Manager.ScaleWorkers] for a number outside the limits of --workers.
var ErrLimits = podmanager.ErrLimits

// ScaleWorkers sets the number of workers, unless workers is 0, and returns how far they are from their goal. It returns when the number is stored.
// Pods are created and deleted afterwards, also by the next leader.
func (m *Manager) ScaleWorkers(ctx context.Context, workers int) (Group, error) {
	m.mu.Lock()
	t := m.leads
	m.mu.Unlock()
	if t == nil {
		return Group{}, committer.ErrNotLeader
	}
	if workers != 0 {
		if err := m.config.Pods.CheckWorkers(workers); err != nil {
			return Group{}, err
		}
		if err := t.scale(ctx, func(s podmanager.State) (podmanager.State, bool) {
			return s.Scale(m.config.Pods, podmanager.Worker, workers), true
		}); err != nil {
			return Group{}, err
		}
	}
	s, err := m.Summary()
	if err != nil {
		return Group{}, err
	}
	for _, g := range s.Groups {
		if g.Role == podmanager.Worker {
			return g, nil
		}
	}
	return Group{}, m.config.Pods.CheckWorkers(0) // the job has no workers
}

// FollowWorkers sets the number of workers to the number of an annotation, unless the leader or an earlier leader has applied this number.
func (m *Manager) FollowWorkers(ctx context.Context, wanted int) error {
	m.mu.Lock()
	t := m.leads
	m.mu.Unlock()
	if t == nil {
		return committer.ErrNotLeader
	}
	if err := m.config.Pods.CheckWorkers(wanted); err != nil {
		return err
	}
	return t.scale(ctx, func(s podmanager.State) (podmanager.State, bool) {
		return s.Follow(m.config.Pods, podmanager.Worker, wanted)
	})
}

// scale stores another number of workers, unless change returns false.
func (t *term) scale(ctx context.Context, change func(podmanager.State) (podmanager.State, bool)) error {
	if err := t.turn.Acquire(ctx); err != nil {
		return err
	}
	defer t.turn.Release()
	over := false
	if err := t.Read(ctx, func(q *taskqueue.Queue) {
		status, _ := q.Status()
		over = status == taskqueue.Ended || status == taskqueue.Failed
	}); err != nil {
		return err
	}
	if over {
		return taskqueue.ErrJobOver
	}
	before := t.config.Pods.Goal(t.state, podmanager.Worker).Count
	next, changed := change(t.state)
	if !changed {
		return nil
	}
	//guard:goal-is-stored
	if err := t.commit(ctx, next, nil); err != nil {
		return err
	}
	t.config.Log.WithFields(logrus.Fields{"before": before, "workers": next.Goals[podmanager.Worker].Count}).Info("number of workers set")
	t.box.Wake()
	return nil
}
