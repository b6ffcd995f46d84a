package trainercontrol

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// Trainers calls the service TrainerControl.
type Trainers interface {
	// Stop asks the trainer at an address, "ip:port", to give up a dispatch of a task.
	Stop(ctx context.Context, address string, task taskqueue.Token) error
	// Progress returns the task that the trainer works on, and a number that grows while it makes progress.
	Progress(ctx context.Context, address string) (task taskqueue.TaskID, iteration int64, err error)
	// Evaluate asks the trainer to evaluate its own model on the data of a task. A trainer that has accepted the task before does nothing. The
	// error is ErrRefused if a repetition would be refused, too.
	Evaluate(ctx context.Context, address string, task Task) error
}

// ErrRefused is returned by Trainers.Evaluate if the trainer does not accept the task.
var ErrRefused = errors.New("the trainer refuses to evaluate its model")

// Task is an evaluation task with what its trainer needs to read it.
type Task struct {
	Token  taskqueue.Token
	Index  int // in its dataset
	Round  taskqueue.Round
	Ranges []taskqueue.RecordRange
	Chunks []taskqueue.Chunk
}

// Config has the dependencies of the component.
type Config struct {
	Trainers Trainers
	Streams  *Streams // of trainers without an address; nil: none
	Log      *logrus.Entry
}

const (
	maxCalls       = 16 // in progress
	maxCallsOfHost = maxCalls / 4
	callTimeout    = 5 * time.Second
)

// New returns the component that sends commands to trainers.
func New(config Config) component.Component { return &commands{config: config} }

type commands struct {
	config Config
	box    *component.Mailbox
	free   chan struct{} // holds a token for each call in progress

	mu    sync.Mutex
	hosts map[string]*hostCalls // with calls that wait or are in progress
}

// hostCalls are the calls to the trainers of one host.
type hostCalls struct {
	calls int           // including waiting calls
	free  chan struct{} // holds a token for each call that has its share
}

// Name implements [component.Component].
func (*commands) Name() string { return "control of trainers" }

// Init implements [component.Component].
func (*commands) Init(context.Context) error { return nil }

// Prepare subscribes to the effects.
func (c *commands) Prepare(_ context.Context, t component.Term) error {
	c.box = t.Effects(taskqueue.OnStopDue, taskqueue.OnProgressDue, taskqueue.OnEvaluateDue, taskqueue.OnSessionsChanged)
	return nil
}

// Run sends commands until ctx ends. The committer never waits: effects stay in the mailbox, the newest of each trainer.
func (c *commands) Run(ctx context.Context, t component.Term) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	c.free, c.hosts = make(chan struct{}, maxCalls), map[string]*hostCalls{}
	for ; ctx.Err() == nil; t.Clock().Wait(ctx, c.box.Changed(), -1) {
		for _, e := range c.box.Take() {
			calls.Go(func() {
				_ = component.Contain(c.config.Log, c.Name(), func() error { // a panic is logged, and costs this command
					switch e := e.(type) {
					case taskqueue.StopDue:
						c.stop(ctx, t.Clock(), e)
					case taskqueue.ProgressDue:
						c.progress(ctx, t, e)
					case taskqueue.EvaluateDue:
						c.evaluate(ctx, t, e)
					case taskqueue.SessionsChanged:
						//guard:stream-forgets-ended-sessions
						c.config.Streams.end(e)
					}
					return nil
				})
			})
		}
	}
	return context.Cause(ctx)
}

// call makes a call to an address when one is free, within callTimeout. Ports of one host that do not answer leave most calls to the others.
func (c *commands) call(ctx context.Context, clock component.Clock, address string, method func(context.Context) error) error {
	share, end := c.host(address)
	defer end()
	//guard:control-call-limit
	for _, free := range []chan struct{}{share, c.free} {
		select {
		case free <- struct{}{}:
			defer func() { <-free }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	//guard:control-call-timeout
	bounded, cancel := clock.WithTimeout(ctx, callTimeout)
	defer cancel()
	return method(bounded)
}

// host returns the share of the calls of the host of an address, until end.
func (c *commands) host(address string) (share chan struct{}, end func()) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		name = address
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hosts[name]
	if h == nil {
		//guard:control-calls-of-a-host
		share := make(chan struct{}, maxCallsOfHost)
		h = &hostCalls{free: share}
		c.hosts[name] = h
	}
	h.calls++
	return h.free, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if h.calls--; h.calls == 0 {
			delete(c.hosts, name)
		}
	}
}

// progress asks a trainer twice, and reports to the queue that the task has moved in between. A trainer that does not answer keeps its
// deadline.
func (c *commands) progress(ctx context.Context, t component.Term, due taskqueue.ProgressDue) {
	if due.Address == "" {
		c.config.Streams.Send(due.Trainer, Command{Progress: due.Task})
		return
	}
	ask := func() (iteration int64, runs bool) {
		var task taskqueue.TaskID
		err := c.call(ctx, t.Clock(), due.Address, func(ctx context.Context) (err error) {
			task, iteration, err = c.config.Trainers.Progress(ctx, due.Address)
			return err
		})
		//guard:progress-of-the-task
		return iteration, err == nil && task == due.Task.ID()
	}
	before, runs := ask()
	if !runs {
		return
	}
	t.Clock().Sleep(ctx, due.Within)
	//guard:progress-must-grow
	if after, runs := ask(); runs && after > before {
		_, _ = t.Submit(ctx, &taskqueue.Moved{Trainer: due.Trainer, Incarnation: due.Incarnation, Task: due.Task}) // a refused commit leaves the deadline
	}
}

// offerPause is the pause before a task is offered again.
const offerPause = time.Second

// evaluate brings the next task of a round of a trainer to it, until the trainer has accepted it or the round has ended. After the finish of the
// task, another effect asks for the next task.
func (c *commands) evaluate(ctx context.Context, t component.Term, due taskqueue.EvaluateDue) {
	log := c.config.Log.WithFields(logrus.Fields{"trainer": due.ID, "address": due.Address, "round": due.Round})
	for n := 0; ctx.Err() == nil; n++ {
		if n > 0 {
			t.Clock().Sleep(ctx, offerPause)
		}
		task, open, err := c.offered(ctx, t, due)
		switch {
		case err != nil: // the commit was refused
			continue
		case !open:
			return
		case task == nil: // the job is paused
			continue
		}
		err = c.call(ctx, t.Clock(), due.Address, func(ctx context.Context) error { return c.config.Trainers.Evaluate(ctx, due.Address, *task) })
		switch {
		case err == nil:
			log.WithField("task", task.Token.String()).Info("trainer asked to evaluate its model")
			return
		case errors.Is(err, ErrRefused):
			//guard:refused-evaluation-ends-round
			_, _ = t.Submit(ctx, &taskqueue.Request{Trainer: due.Trainer, Incarnation: due.Incarnation, Finished: []taskqueue.Result{{Token: task.Token, Error: err.Error()}}})
		case n == 0 && ctx.Err() == nil:
			log.WithError(err).Warn("trainer not reached, trying on")
		}
	}
}

// offered returns the task of a round of a trainer; nil: none is dispatched now. open reports whether the round is open.
func (c *commands) offered(ctx context.Context, t component.Term, due taskqueue.EvaluateDue) (task *Task, open bool, err error) {
	a, err := t.Submit(ctx, &taskqueue.OfferTask{Trainer: due.Trainer, Incarnation: due.Incarnation})
	if err != nil {
		return nil, false, err
	}
	err = t.Read(ctx, func(q *taskqueue.Queue) {
		var round taskqueue.Round
		if round, open = q.Round(); !open || round.Number != due.Round || a.Kind != taskqueue.AnswerTask {
			open = open && round.Number == due.Round
			return
		}
		table := q.Table(a.Set)
		task = &Task{Token: a.Token, Index: a.Index, Round: *a.Round, Ranges: table.TaskRanges(a.Index), Chunks: table.TaskChunks(a.Index)}
	})
	return task, open, err
}

// stop sends the stops of a trainer until one fails.
func (c *commands) stop(ctx context.Context, clock component.Clock, due taskqueue.StopDue) {
	if due.Address == "" {
		list := make([]Command, len(due.Stops))
		for i, task := range due.Stops {
			list[i].Stop = task
		}
		c.config.Streams.Send(due.Trainer, list...)
		return
	}
	for _, task := range due.Stops {
		err := c.call(ctx, clock, due.Address, func(ctx context.Context) error { return c.config.Trainers.Stop(ctx, due.Address, task) })
		log := c.config.Log.WithFields(logrus.Fields{"trainer": due.ID, "address": due.Address, "task": task.String()})
		if err != nil {
			if ctx.Err() == nil {
				log.WithError(err).Warn("stop not sent to the trainer, its next heartbeat returns it")
			}
			return
		}
		log.Info("trainer asked to stop a task")
	}
}
