package rounds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/master/evaluation"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// Config holds the dependencies and settings of the component.
type Config struct {
	Evaluation evaluation.Config
	Set        string                      // name of the evaluation dataset; default "evaluation"
	Register   func(context.Context) error // registers the evaluation dataset. It is repeated until it succeeds
	// Refused returns the error that ends the term after an error of Register, or nil: Register is repeated. known: the dataset of the job
	// is registered. Default: another dataset ends the term.
	Refused func(err error, known bool) error
	Models  Models            // nil: the newest model of a training result
	Figures map[string]string // figures by which the job decides, besides Best, with what names them. A round without one is logged
	Metrics io.Writer         // receives the figures of each round that this master ends, as lines of name=value. nil: none
	Store   store.Store
	Log     *logrus.Entry // default: the standard logger
}

// Models has the models of the parameter servers.
type Models interface {
	// Pin calls use with the current model, and the version of its parameters. The model is not removed before use returns.
	Pin(ctx context.Context, use func(model string, version uint64) error) error
}

// Rounds is the component. Its methods may be called at any time.
type Rounds struct {
	config Config
	box    *component.Mailbox
	state  evaluation.State // as stored

	mu      sync.Mutex
	term    component.Term // nil: this master does not lead
	waiting []call         // of Evaluate
	failure error          // of the last registration of the dataset; nil: none has failed in this term
}

// call is a call of Evaluate.
type call struct {
	trainer string // ""; the model of the job
	done    chan error
}

// New returns the component.
func New(config Config) *Rounds {
	if config.Log == nil {
		config.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	if config.Set == "" {
		config.Set = taskqueue.Evaluation.String()
	}
	if config.Refused == nil {
		config.Refused = func(err error, _ bool) error {
			if errors.Is(err, taskqueue.ErrOtherDataset) {
				return err
			}
			return nil
		}
	}
	return &Rounds{config: config}
}

// Name implements [component.Component].
func (r *Rounds) Name() string { return "evaluation" }

// Init implements [component.Component].
func (r *Rounds) Init(context.Context) error { return r.config.Evaluation.Validate() }

// Prepare reads the state that the leader before has stored.
func (r *Rounds) Prepare(ctx context.Context, t component.Term) error {
	kinds := []taskqueue.EffectKind{taskqueue.OnPassClosed, taskqueue.OnModelStored, taskqueue.OnReported, taskqueue.OnJobEnded, taskqueue.OnEvaluationWanted}
	if r.config.Evaluation.Every.Steps > 0 {
		kinds = append(kinds, taskqueue.OnStepCommitted)
	}
	r.box = t.Effects(kinds...)
	value, _, err := r.config.Store.Value(ctx, evaluation.Key)
	if err != nil {
		return fmt.Errorf("read %s: %w", evaluation.Key, err)
	}
	r.state = evaluation.State{}
	if value == nil {
		return nil
	}
	//guard:evaluation-state-continues
	if r.state, err = evaluation.Decode(value); err != nil {
		return fmt.Errorf("%w: read %s: %w", taskqueue.ErrDamaged, evaluation.Key, err)
	}
	return nil
}

// retryPause is the pause after a decision that could not be stored, and before a model is looked for again.
const retryPause = time.Second

// Run makes decisions until ctx ends.
func (r *Rounds) Run(ctx context.Context, t component.Term) error {
	r.lead(t)
	defer func() {
		r.lead(nil)
		for _, c := range r.asked() {
			c.done <- fmt.Errorf("%w: the term has ended", ErrNotLeading)
		}
	}()
	if err := r.register(ctx, t); err != nil {
		return err
	}
	for rest := time.Duration(0); ; {
		t.Clock().Wait(ctx, r.box.Changed(), rest)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.box.Take()
		for _, c := range r.asked() {
			c.done <- r.request(ctx, t, c.trainer)
		}
		next, err := r.decideAll(ctx, t)
		if rest = next; err != nil && ctx.Err() == nil {
			r.config.Log.WithError(err).Warn("evaluation not continued, retrying")
			rest = retryPause
		}
	}
}

// lead sets the term that Evaluate uses.
func (r *Rounds) lead(t component.Term) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.term, r.failure = t, nil
}

// answerUnregistered answers all calls of Evaluate with an error until the dataset is registered. nil: it is.
func (r *Rounds) answerUnregistered(err error) {
	r.mu.Lock()
	r.failure = err
	r.mu.Unlock()
	if err == nil {
		return
	}
	for _, c := range r.asked() {
		c.done <- err
	}
}

// asked takes the calls of Evaluate.
func (r *Rounds) asked() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.waiting
	r.waiting = nil
	return list
}

// register registers the evaluation dataset, after the other datasets of the job: users know the training dataset by the number 0.
func (r *Rounds) register(ctx context.Context, t component.Term) error {
	for known := false; !known; {
		if err := t.Read(ctx, func(q *taskqueue.Queue) { known = q.Table(0) != nil && q.Registered() }); err != nil {
			return err
		}
		if !known {
			t.Clock().Wait(ctx, r.box.Changed(), -1)
		}
	}
	defer r.answerUnregistered(nil)
	for pause := retryPause; ; pause = min(2*pause, time.Minute) {
		err := r.config.Register(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			return nil
		}
		known := false
		if err := t.Read(ctx, func(q *taskqueue.Queue) { _, known = q.Set(r.config.Set) }); err != nil {
			return err
		}
		//guard:unusable-evaluation-data-ends-the-master
		if refused := r.config.Refused(err, known); refused != nil {
			return refused
		}
		//guard:rounds-without-the-files-of-the-leader
		if known {
			r.config.Log.WithError(err).Warn("evaluation data not compared with the dataset of the job")
			return nil // trainers may be able to read its files
		}
		r.config.Log.WithError(err).Warn("evaluation data not registered, retrying")
		//guard:evaluate-names-why-data-is-not-registered
		r.answerUnregistered(fmt.Errorf("%w: %w", evaluation.ErrNotRegistered, err))
		t.Clock().Sleep(ctx, pause)
	}
}

// ErrNotLeading is returned by Evaluate on a master that does not lead.
var ErrNotLeading = committer.ErrNotLeader

// Evaluate asks for a round of the model of the job or, with a name, of the own model of a trainer. It returns when the request is stored:
// the round has begun, or begins after the open one. It returns [evaluation.ErrNotRegistered] with the reason while the dataset cannot be registered.
func (r *Rounds) Evaluate(ctx context.Context, trainer string) error {
	done := make(chan error, 1)
	r.mu.Lock()
	t, box, failure := r.term, r.box, r.failure
	if t != nil && failure == nil {
		r.waiting = append(r.waiting, call{trainer, done})
	}
	r.mu.Unlock()
	switch {
	case t == nil:
		return ErrNotLeading
	case failure != nil:
		return failure
	}
	box.Wake()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
