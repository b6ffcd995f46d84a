package pscontrol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// Config holds the dependencies and the settings of a [Control].
type Config struct {
	Servers  Servers       // default [None]
	Registry store.Servers // to evict servers that died; nil: their leases run out
	Store    store.Store
	Log      *logrus.Entry // default: the standard logger

	Start string // how a missing server is started; default: by its command

	Sync    bool // gradients are applied in synchronous steps
	Cuts    bool // checkpoints are cuts of data and parameters, and the job rolls back to them
	Backups int  // trainers that a synchronous step does not wait for

	CheckpointEvery Cadence // zero: never
	CheckpointKeep  int     // checkpoint sets; default 2
}

// Validate names the first field with a value that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.CheckpointKeep < 0:
		return fmt.Errorf("checkpoint-keep: expected 0 (the default) or more, found %d", c.CheckpointKeep)
	case c.CheckpointEvery.Steps > 0 && !c.Sync:
		return errors.New("checkpoint-every: expected no steps: the master counts them in synchronous mode only")
	}
	return nil
}

// Control controls the parameter servers of a job while its master leads.
type Control struct {
	config  Config
	current atomic.Pointer[term] // the last term; nil before the first one
}

// New returns the control of parameter servers. It does nothing until a master runs its components.
func New(config Config) *Control {
	if config.Servers == nil {
		config.Servers = None{}
	}
	if config.Log == nil {
		config.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	if config.CheckpointKeep == 0 {
		config.CheckpointKeep = 2
	}
	return &Control{config: config}
}

// Components returns all components that the configuration needs.
func (c *Control) Components() []component.Component {
	list := []component.Component{c.Sessions(), c.Scaling(), c.faults(), c.OwnRate()}
	if c.config.Sync {
		list = append(list, c.Steps())
	} else {
		list = append(list, c.learningRates())
	}
	list = append(list, c.Checkpoints()...)
	if c.config.Registry != nil {
		list = append(list, c.attendance())
	}
	return list
}

// LastCheckpoint saves the parameters of an asynchronous job before its leader ends. The last cut of another job has them.
func (c *Control) LastCheckpoint(ctx context.Context) {
	t := c.current.Load()
	if t == nil || t.config.Cuts || !t.takesCheckpoints() {
		return
	}
	bounded, cancel := t.Clock().WithTimeout(ctx, lastTimeout)
	defer cancel()
	for wanted := true; wanted; {
		states, err := t.config.Servers.States(bounded)
		if slices.ContainsFunc(states, func(s ServerState) bool { return s.Ready && s.KeepsCheckpoints }) {
			err = t.checkpoints.take(bounded)
		} else if err == nil {
			return // nothing to save
		}
		if err != nil {
			//guard:missing-last-set-logged
			c.config.Log.WithError(err).Warn("no last checkpoint set: parameter servers that are stopped before another master leads lose the updates since the latest set")
			return
		}
		wanted, _ = t.checkpoints.isWanted(bounded) // servers that stop at the same time
	}
}

// term has what the components of one term share.
type term struct {
	component.Term
	config Config
	gate   component.Semaphore // held while a step is sent to the servers, or must not be sent

	checkpoints *checkpointer
	scaler      *scaler
	faults      atomic.Pointer[Faults] // of the servers; nil: none is known
}

func newTerm(t component.Term, config Config) *term {
	now := &term{Term: t, config: config, gate: component.NewSemaphore()}
	now.scaler = &scaler{term: now, changes: component.NewSemaphore()}
	now.checkpoints = newCheckpointer(now)
	return now
}

func (t *term) takesCheckpoints() bool {
	_, hasNone := t.config.Servers.(None)
	return !hasNone || t.config.Cuts
}

func (t *term) since(at time.Time) time.Duration { return t.Clock().Now().Sub(at) }

// within is context.WithTimeout on the clock of the term.
func (t *term) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return t.Clock().WithTimeout(ctx, d)
}

// read returns what f reads of the queue.
func read[T any](ctx context.Context, t component.Term, f func(*taskqueue.Queue) T) (value T, err error) {
	err = t.Read(ctx, func(q *taskqueue.Queue) { value = f(q) })
	return value, err
}

// publish writes keys in one transaction with the state.
func (t *term) publish(ctx context.Context, writes ...taskqueue.Write) error {
	_, err := t.Submit(ctx, &taskqueue.StoreKeys{Writes: writes})
	return err
}

// part is a component of a [Control].
type part struct {
	*Control
	name string
	on   []taskqueue.EffectKind // that it subscribes to
	// recover reads what is committed when the term is prepared; nil: nothing.
	recover func(ctx context.Context, t *term, box *component.Mailbox) error
	// run runs for the length of the term.
	run func(ctx context.Context, t *term, box *component.Mailbox) error

	shared *term
	box    *component.Mailbox
}

// Name implements [component.Component].
func (p *part) Name() string { return p.name }

// Init implements [component.Component].
func (p *part) Init(context.Context) error { return nil }

// Prepare implements [component.Component]. The first part of a term begins what the parts share.
func (p *part) Prepare(ctx context.Context, t component.Term) error {
	if p.shared = p.current.Load(); p.shared == nil || p.shared.Number() != t.Number() {
		p.shared = newTerm(t, p.config)
		p.current.Store(p.shared)
	}
	p.box = p.shared.Effects(p.on...)
	if p.recover == nil {
		return nil
	}
	return p.recover(ctx, p.shared, p.box)
}

// Run implements [component.Component].
func (p *part) Run(ctx context.Context, _ component.Term) error { return p.run(ctx, p.shared, p.box) }

// pause sleeps on the clock of the machine.
func pause(ctx context.Context, d time.Duration) { component.MachineClock{}.Sleep(ctx, d) }

// resendEvery is how often a component repeats its last message to parameter servers, for a server that started without a change
// of the registry.
const resendEvery = 5 * time.Second
