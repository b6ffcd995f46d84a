package agent

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"trainmaster/dataset"
	"trainmaster/master/evaluation/metric"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// evaluations are the evaluations of the current model that the training process has to make, by their numbers.
type evaluations struct {
	mu   sync.Mutex
	byID map[int]*evaluation
}

type evaluation struct {
	task   task
	result chan measured // has room for one
}

// measured is the result of an evaluation.
type measured struct {
	metrics []byte
	err     error
}

type commandsReply struct {
	Stop     bool   `json:"stop"`
	Evaluate []task `json:"evaluate"`
}

// commands returns what the master wants of the training process. A task is repeated until its result. The first reply waits for r.Wait until the
// master knows that this process evaluates: then no later request for tasks ends a round of this trainer.
func (a *agent) commands(w *trainer.Window, r *request) work {
	wait := defaultWait
	if r.Wait != nil {
		wait = *r.Wait
	}
	r.Wait = nil
	return func(ctx context.Context) (reply, error) {
		if r.Evaluates {
			select {
			case <-w.Client().EvaluateBy(a.evaluate):
			case <-time.After(seconds(wait)):
			case <-ctx.Done():
				return reply{}, context.Cause(ctx)
			}
		}
		return a.commanded(w), nil
	}
}

// commanded returns the reply to a request for commands.
func (a *agent) commanded(w *trainer.Window) reply {
	out := commandsReply{Stop: w.Client().Draining(), Evaluate: []task{}}
	e := &a.evaluations
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.byID {
		out.Evaluate = append(out.Evaluate, one.task)
	}
	slices.SortFunc(out.Evaluate, func(x, y task) int { return x.ID - y.ID })
	return reply{content: out}
}

// evaluate is [trainer.EvaluateFunc]: the training process evaluates its model on a task.
func (a *agent) evaluate(ctx context.Context, t *taskqueue.Task, stamps []dataset.Stamp) ([]byte, error) {
	one := &evaluation{task: describe(t, 0, stamps), result: make(chan measured, 1)}
	one.task.ID = a.tasks.number()
	e := &a.evaluations
	e.mu.Lock()
	if e.byID == nil {
		e.byID = map[int]*evaluation{}
	}
	e.byID[one.task.ID] = one
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.byID, one.task.ID)
	}()
	select {
	case m := <-one.result:
		return m.metrics, m.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// evaluated takes a result. The result of an unknown task is ignored: it can be repeated, and the master can have stopped the task.
func (a *agent) evaluated(r *request) error {
	m, err := resultOf(r)
	if err != nil {
		return err
	}
	e := &a.evaluations
	e.mu.Lock()
	defer e.mu.Unlock()
	if one := e.byID[r.Task]; one != nil {
		delete(e.byID, r.Task)
		one.result <- m
	}
	return nil
}

// resultOf returns the result of a request.
func resultOf(r *request) (m measured, err error) {
	switch {
	case r.NotFinite != "":
		return measured{err: &trainer.NotFiniteError{Metric: r.NotFinite, Value: math.NaN()}}, nil
	case r.Error != "":
		return measured{err: errors.New(r.Error)}, nil
	case len(r.Metrics) == 0 && r.Records > 0:
		return m, invalidf("metrics: expected at least one metric of %d records, found none", r.Records)
	}
	var set metric.Set
	for name, mean := range r.Metrics {
		if err := set.AddWeighted(name, mean, r.Records); err != nil {
			return m, invalidf("metrics: %v", err)
		}
	}
	return measured{metrics: set.Encode()}, nil
}
