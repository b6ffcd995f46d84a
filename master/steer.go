package master

import (
	"context"
	"errors"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"trainmaster/master/pods"
	"trainmaster/master/pscontrol"
	"trainmaster/master/ring"
	"trainmaster/taskqueue"
)

// Commands of an operator to the leader. Each call returns after the commit.

// Pause stops dispatches until Resume, also under later leaders.
func (m *Master) Pause(ctx context.Context, reason string) error {
	return m.send(ctx, &taskqueue.Pause{Reason: reason})
}

// Resume resumes a paused job.
func (m *Master) Resume(ctx context.Context) error { return m.send(ctx, &taskqueue.Resume{}) }

// ErrNoEvaluation is returned by Evaluate for a job without evaluation data.
var ErrNoEvaluation = errors.New("the job is not evaluated: expected --evaluation-data of its master")

// Evaluate asks for an evaluation round of the model of the job or, with a name, of the own model of a trainer. It returns when the request
// is stored.
func (m *Master) Evaluate(ctx context.Context, trainer string) error {
	if _, err := m.leading(); err != nil {
		return err
	}
	if m.config.Evaluate == nil {
		return ErrNoEvaluation
	}
	return m.config.Evaluate(ctx, trainer)
}

// ErrNoPods is returned by Pods for a job whose master creates no pods.
var ErrNoPods = errors.New("the master of the job creates no pods: expected --workers of its master")

// ErrNoRing is returned by Ring for a job without a ring.
var ErrNoRing = errors.New("the job has no ring: expected --ring of its master")

// Ring returns the ring of the job.
func (m *Master) Ring() (*ring.Ring, error) {
	if m.config.Ring == nil {
		return nil, ErrNoRing
	}
	return m.config.Ring, nil
}

// Pods returns the pods of the job.
func (m *Master) Pods() (pods.Summary, error) {
	if m.config.Pods == nil {
		return pods.Summary{}, ErrNoPods
	}
	return m.config.Pods.Summary()
}

// ErrPodLimits is wrapped by the error of ScaleWorkers for a number outside the limits of --workers.
var ErrPodLimits = pods.ErrLimits

// ScaleWorkers sets the number of worker pods, unless workers is 0, and returns how far they are from it.
func (m *Master) ScaleWorkers(ctx context.Context, workers int) (pods.Group, error) {
	if _, err := m.leading(); err != nil {
		return pods.Group{}, err
	}
	if m.config.Pods == nil {
		return pods.Group{}, ErrNoPods
	}
	return m.config.Pods.ScaleWorkers(ctx, workers)
}

// Drain lets a trainer finish its tasks and then leave.
func (m *Master) Drain(ctx context.Context, trainer string) error {
	return m.send(ctx, &taskqueue.Drain{ID: trainer})
}

// StopTasks takes the running tasks of a trainer away and stops them there. It returns them.
func (m *Master) StopTasks(ctx context.Context, trainer string) ([]taskqueue.Token, error) {
	t, err := m.leading()
	if err != nil {
		return nil, err
	}
	a, err := t.Submit(ctx, &taskqueue.StopTasks{ID: trainer})
	return a.Stops, err
}

// RetryTask puts a set-aside task back.
func (m *Master) RetryTask(ctx context.Context, set, index int) error {
	return m.send(ctx, &taskqueue.RetryAside{Set: set, Index: index})
}

// retriesAtOnce is how many retries go to the committer side by side: each writes a key, and
// so they share commits.
const retriesAtOnce = 32

// RetryAllTasks puts back all tasks of a dataset that are set aside and were not dropped; it
// returns how many, also when some could not be.
func (m *Master) RetryAllTasks(ctx context.Context, set int) (retried int, err error) {
	tasks, err := m.Tasks(ctx)
	if err != nil {
		return 0, err
	}
	var n atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(retriesAtOnce)
	for _, t := range tasks.SetAside {
		if t.Set != set || t.Dropped {
			continue
		}
		group.Go(func() error {
			err := m.RetryTask(ctx, t.Set, t.Index)
			switch {
			case err == nil:
				n.Add(1)
			case errors.Is(err, taskqueue.ErrNotAside), errors.Is(err, taskqueue.ErrDropped): // another operator was faster
				return nil
			}
			return err
		})
	}
	err = group.Wait()
	return int(n.Load()), err
}

// DropTask excludes a set-aside task permanently.
func (m *Master) DropTask(ctx context.Context, set, index int) error {
	return m.send(ctx, &taskqueue.DropTask{Set: set, Index: index})
}

// Scale sets the target number of parameter servers, unless servers is 0, and returns the progress.
func (m *Master) Scale(ctx context.Context, servers int) (pscontrol.Scaling, error) {
	if _, err := m.leading(); err != nil {
		return pscontrol.Scaling{}, err
	}
	return m.config.Servers.Scale(ctx, servers)
}

// SetJob changes settings of the job: the learning rate of its parameter servers before their schedule (0: unchanged), and weights of
// datasets by name. It returns the change of the learning rate.
func (m *Master) SetJob(ctx context.Context, rate float32, weights map[string]int) (change taskqueue.RateChange, err error) {
	t, err := m.leading()
	if err != nil {
		return change, err
	}
	event := &taskqueue.SetJob{Rate: rate, Weights: weights}
	if rate != 0 {
		if event.Scale, err = m.config.Servers.RateScale(ctx, rate); err != nil {
			return change, err
		}
	}
	answer, err := t.Submit(ctx, event)
	return taskqueue.RateChange{From: answer.Version, Scale: event.Scale, Rate: rate}, err
}
