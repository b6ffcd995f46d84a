package master

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// serverControl is the component that controls the parameter servers: it sends steps and sessions, takes checkpoints, rolls back and
// migrates blocks.
type serverControl struct {
	config  Config
	current atomic.Pointer[control] // of the last term; nil before the first one
}

// Name implements [component.Component].
func (s *serverControl) Name() string { return "parameter servers" }

// Init implements [component.Component].
func (s *serverControl) Init(context.Context) error { return nil }

// Prepare reads the committed placement and subscribes to effects.
func (s *serverControl) Prepare(ctx context.Context, t component.Term) error {
	c := newControl(t, s.config)
	if err := c.prepare(ctx); err != nil {
		return err
	}
	s.current.Store(c)
	return nil
}

// Run implements [component.Component].
func (s *serverControl) Run(ctx context.Context, _ component.Term) error {
	return s.current.Load().run(ctx)
}

// lastCheckpoint saves the final parameters of the job, after training has ended.
func (s *serverControl) lastCheckpoint(ctx context.Context) { s.current.Load().lastCheckpoint(ctx) }

// control is the control of the parameter servers in one term.
type control struct {
	component.Term
	config      Config
	checkpoints *checkpointer // nil: none are taken
	scaler      *scaler
	steps       *component.Mailbox
	retired     *component.Mailbox
	telling     turn                        // to send a step to the servers
	faults      atomic.Pointer[ShardFaults] // of parameter servers; nil: none is known
	stageRoom   atomic.Pointer[string]      // why no synchronous step can be complete; "" or nil: it can
}

func newControl(t component.Term, config Config) *control {
	return &control{Term: t, config: config, telling: newTurn()}
}

func (t *control) since(at time.Time) time.Duration { return t.Clock().Now().Sub(at) }

func (t *control) prepare(ctx context.Context) (err error) {
	checkpoints := newCheckpointer(t)
	if t.scaler, err = recoverScaler(ctx, t, checkpoints); err != nil {
		return err
	}
	if t.config.CheckpointEvery != (Cadence{}) || t.config.Queue.Cuts {
		t.checkpoints = checkpoints
	}
	if t.config.Queue.Cuts {
		checkpoints.cuts = &rewinding{checkpointer: checkpoints, placed: t.scaler.committed}
	}
	t.subscribe()
	checkpoints.subscribe()
	t.scaler.box = t.Effects(component.OnServersChanged)
	return nil
}

// run runs until ctx ends. An error of a part ends all of them.
func (t *control) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if t.config.Sync {
		group.Go(func() error { return t.tellShards(ctx) })
		group.Go(func() error { return t.watchStageRoom(ctx) })
	}
	if t.checkpoints != nil {
		group.Go(func() error { return t.checkpoints.run(ctx) })
	}
	group.Go(func() error { return t.scaler.run(ctx) })
	group.Go(func() error { return t.watchFaults(ctx) })
	group.Go(func() error { return t.retire(ctx, t.retired) })
	if t.config.Registry != nil {
		group.Go(func() error {
			return (&attendance{t.config.Registry, t.config.Log, func() { t.Post(component.ServersChanged{}) }}).run(ctx)
		})
	}
	return group.Wait()
}

// subscribe opens the mailboxes of steps and sessions.
func (t *control) subscribe() {
	t.retired = t.Effects(taskqueue.OnSessionsChanged, component.OnServersChanged)
	t.steps = t.Effects(taskqueue.OnStepCommitted, component.OnServersChanged)
}

// resendEvery is how often a component repeats its last message to parameter servers, for a server that started without a change
// of the registry.
const resendEvery = 5 * time.Second

// tellShards sends the newest committed step to the parameter servers, and again when a server registers, after an error, and after
// resendEvery. Servers that have it ignore it.
func (t *control) tellShards(ctx context.Context) error {
	var last taskqueue.Step
	rest := time.Duration(0)
	for ; ctx.Err() == nil; t.Clock().Wait(ctx, t.steps.Changed(), rest) {
		for _, e := range t.steps.Take() {
			if step, ok := e.(taskqueue.StepCommitted); ok {
				last = step.Step
			}
		}
		rest = resendEvery
		if last.Version == 0 {
			continue
		}
		if err := t.tell(ctx, last); err != nil && ctx.Err() == nil {
			rest = stepRetry
			t.config.Log.WithError(err).WithField("version", last.Version).Warn("step not sent to all parameter servers, retrying")
		}
	}
	return context.Cause(ctx)
}

// tell takes the turn and sends a step to the servers.
func (t *control) tell(ctx context.Context, step taskqueue.Step) error {
	if err := t.telling.take(ctx); err != nil {
		return err
	}
	defer t.telling.give()
	bounded, cancel := t.Clock().WithTimeout(ctx, stepTimeout)
	defer cancel()
	return t.config.Servers.CommitStep(bounded, step)
}

// holdSteps waits until every server has the last committed step, and then sends no step until release. Steps can be committed
// meanwhile, and trainers can receive them; they are sent afterwards.
func (t *control) holdSteps(ctx context.Context) (release func(), err error) {
	if err := t.telling.take(ctx); err != nil {
		return nil, err
	}
	var last taskqueue.Step
	err = t.Read(ctx, func(q *taskqueue.Queue) { last, _ = q.SyncStep() })
	if err == nil && last.Version > 0 {
		err = t.config.Servers.CommitStep(ctx, last)
	}
	if err != nil {
		t.telling.give()
		return nil, err
	}
	return t.telling.give, nil
}

const (
	stepRetry   = 500 * time.Millisecond
	stepTimeout = 10 * time.Second
)
