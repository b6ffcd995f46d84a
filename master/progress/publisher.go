package progress

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// Owner is the object that owns the pod of the master.
type Owner interface {
	// Annotate writes annotations, and returns all annotations of the object.
	Annotate(ctx context.Context, annotations map[string]string) (map[string]string, error)
}

// Config holds the dependencies and settings of a publisher.
type Config struct {
	Owner  Owner
	Pods   func() (workers, servers int, waiting string) // that run; waiting: why others do not run.
	Scale  func(ctx context.Context, workers int) error  // sets the number, once for all leaders
	Passes int                                           // as the queue has them; 0: no limit
	Figure string                                        // of the scores of evaluation rounds
	Every  time.Duration                                 // least time between two publications; default 5 s
	Log    *logrus.Entry                                 // default: the standard logger
}

// Publisher is the component that publishes the progress.
type Publisher struct {
	config Config
	box    *component.Mailbox

	last   string    // as published
	at     time.Time // of the last publication
	scaled string    // the number of workers that was applied last in this term
}

// WorkersAnnotation is the annotation with the wanted number of workers.
const WorkersAnnotation = "trainmaster.io/workers"

const (
	publishEvery = 5 * time.Second
	atRest       = 3                // times as long between two publications without a change, which read the wanted number of workers
	publishTime  = 10 * time.Second // of one request
	finalTime    = 30 * time.Second // of the last publication
	finalPause   = time.Second
)

// New returns a publisher.
func New(config Config) *Publisher {
	if config.Log == nil {
		config.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	if config.Every == 0 {
		config.Every = publishEvery
	}
	return &Publisher{config: config}
}

// Name implements [component.Component].
func (p *Publisher) Name() string { return "progress" }

// Init implements [component.Component].
func (p *Publisher) Init(context.Context) error { return nil }

// Prepare implements [component.Component].
func (p *Publisher) Prepare(_ context.Context, t component.Term) error {
	p.box, p.scaled = t.Effects(taskqueue.OnJobEnded), ""
	return nil
}

// Run publishes changes until ctx ends.
func (p *Publisher) Run(ctx context.Context, t component.Term) error {
	failed := ""
	for {
		now, err := p.read(ctx, t)
		if err == nil {
			now.Workers, now.Servers, now.Waiting = p.config.Pods()
			var annotations map[string]string
			if annotations, err = p.publish(ctx, now, t.Clock().Now()); err == nil {
				err = p.scale(ctx, annotations[WorkersAnnotation])
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			failed = ""
		case err.Error() != failed:
			failed = err.Error()
			p.config.Log.WithError(err).Warn("progress not published, retrying")
		}
		t.Clock().Wait(ctx, p.box.Changed(), p.config.Every)
		p.box.Take()
	}
}

// read returns the progress by the committed state.
func (p *Publisher) read(ctx context.Context, t component.Term) (now Progress, err error) {
	var overview taskqueue.Overview
	var evaluated []byte
	if err := t.Read(ctx, func(q *taskqueue.Queue) { overview, evaluated = q.Overview(), t.Evaluation() }); err != nil {
		return now, err
	}
	return Of(&overview, p.config.Passes, p.config.Figure, evaluated)
}

// publish writes a progress if it has changed, or after atRest intervals. It returns the annotations of the owner. nil: it was not written.
func (p *Publisher) publish(ctx context.Context, now Progress, at time.Time) (annotations map[string]string, err error) {
	text := now.Encode()
	if text == p.last && at.Sub(p.at) < atRest*p.config.Every {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	if annotations, err = p.config.Owner.Annotate(ctx, map[string]string{Annotation: text}); err != nil {
		return nil, err
	}
	p.last, p.at = text, at
	return annotations, nil
}

// scale applies the wanted number of workers. wanted "": it is not known, or there is none.
func (p *Publisher) scale(ctx context.Context, wanted string) error {
	if wanted == "" || wanted == p.scaled {
		return nil
	}
	n, err := strconv.Atoi(wanted)
	if err != nil || n < 1 {
		return fmt.Errorf("annotation %s: expected a number of workers, found %q", WorkersAnnotation, wanted)
	}
	if err := p.config.Scale(ctx, n); err != nil {
		return fmt.Errorf("annotation %s: %w", WorkersAnnotation, err)
	}
	//guard:scaled-once
	p.scaled = wanted
	return nil
}

// Final publishes the progress of a job that has ended, by its stored state, after Run has returned. It repeats failed requests for 30 s.
func (p *Publisher) Final(ctx context.Context, o *taskqueue.Overview, evaluated []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, finalTime, fmt.Errorf("the cluster did not take the progress within %v", finalTime))
	defer cancel()
	now, err := Of(o, p.config.Passes, p.config.Figure, evaluated)
	if err != nil {
		return err
	}
	pause := time.NewTicker(finalPause)
	defer pause.Stop()
	for {
		_, err := p.publish(ctx, now, p.at)
		//guard:final-progress-repeated
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-pause.C:
		}
	}
}
