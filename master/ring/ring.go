package ring

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/master/rendezvous"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// Config holds the dependencies and settings of the component.
type Config struct {
	Rendezvous rendezvous.Config
	Store      store.Store
	Log        *logrus.Entry // default: the standard logger
	Horovod    string        // address of the HTTP rendezvous of Horovod; "": there is none

	LongWait time.Duration // without a generation, after which a user must know the reason; default 30 s
}

// Ring is the component. Its methods may be called at any time.
type Ring struct {
	config Config
	box    *component.Mailbox

	mu      sync.Mutex
	term    component.Term // nil: this master does not lead
	state   rendezvous.State
	waiting string          // why there is no generation
	waits   time.Time       // since when; zero: it does not wait
	stuck   string          // reason of a wait of LongWait
	open    map[*Watch]bool // streams
	values  values
	changed chan struct{} // closes at the next change, and at the end of the term
}

const retryPause = time.Second

const longWait = 30 * time.Second // the programs of the members do not run

// New returns the component.
func New(config Config) *Ring {
	if config.Log == nil {
		config.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	config.LongWait = cmp.Or(config.LongWait, longWait)
	return &Ring{config: config, changed: make(chan struct{})}
}

// Name implements [component.Component].
func (r *Ring) Name() string { return "ring" }

// Init implements [component.Component].
func (r *Ring) Init(context.Context) error { return r.config.Rendezvous.Validate() }

// Prepare reads the ring that the previous leader stored.
func (r *Ring) Prepare(ctx context.Context, t component.Term) error {
	r.box = t.Effects(taskqueue.OnJobEnded)
	value, _, err := r.config.Store.Value(ctx, rendezvous.Key)
	if err != nil {
		return fmt.Errorf("read %s: %w", rendezvous.Key, err)
	}
	var stored rendezvous.Ring
	if value != nil {
		if stored, err = rendezvous.Decode(value); err != nil {
			return fmt.Errorf("%w: read %s: %w", taskqueue.ErrDamaged, rendezvous.Key, err)
		}
	}
	shared, _, err := r.config.Store.Prefixed(ctx, rendezvous.ValuesPrefix)
	if err != nil {
		return fmt.Errorf("read %s: %w", rendezvous.ValuesPrefix, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.values.load(shared); err != nil {
		return fmt.Errorf("%w: %w", taskqueue.ErrDamaged, err)
	}
	r.state, r.waiting, r.open = rendezvous.Begin(stored, t.Clock().Now()), "", map[*Watch]bool{}
	r.waits, r.stuck = time.Time{}, ""
	return nil
}

// drainTimeout is the time that members of a closed ring have to learn it before the term ends.
const drainTimeout = 5 * time.Second

// Run decides until ctx ends.
func (r *Ring) Run(ctx context.Context, t component.Term) error {
	r.lead(t)
	defer r.lead(nil)
	defer r.drain(ctx, t)
	for rest := time.Duration(0); ; {
		t.Clock().Wait(ctx, r.box.Changed(), rest)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.box.Take()
		next, err := r.round(ctx, t)
		if rest = next; err != nil && ctx.Err() == nil {
			r.config.Log.WithError(err).Warn("ring not stored, retrying")
			rest = retryPause
		}
	}
}

// drain waits until the members of a closed ring know it.
func (r *Ring) drain(ctx context.Context, t component.Term) {
	bounded, cancel := t.Clock().WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	for bounded.Err() == nil {
		r.mu.Lock()
		isClosed, members, changed := r.state.Ring.Closed != "", len(r.state.Present), r.changed
		r.mu.Unlock()
		if !isClosed || members == 0 {
			return
		}
		t.Clock().Wait(bounded, changed, -1)
	}
}

// lead begins or ends the term for the calls.
func (r *Ring) lead(t component.Term) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.term = t
	r.broadcastLocked()
}

// broadcastLocked wakes the calls that wait for a change.
func (r *Ring) broadcastLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// round decides and stores. It returns the time until the next round; negative: none is due by time.
func (r *Ring) round(ctx context.Context, t component.Term) (rest time.Duration, err error) {
	over, hasData := "", false
	if err := t.Read(ctx, func(q *taskqueue.Queue) {
		_, hasData = q.SetDigest(0)
		if status, reason := q.Status(); status == taskqueue.Ended || status == taskqueue.Failed {
			if over = "the job has " + status.String(); reason != "" {
				over += ": " + reason
			}
		}
	}); err != nil {
		return 0, err
	}
	r.mu.Lock()
	if over != "" && r.state.Close == "" {
		r.state.Close = rendezvous.Clip(over)
	}
	before := r.state.Ring
	d := rendezvous.Decide(t.Clock().Now(), r.state, r.config.Rendezvous)
	r.mu.Unlock()
	value := d.Ring.Encode()
	isNew := !bytes.Equal(value, before.Encode())
	//guard:ring-stored-first
	if isNew && over == "" { // the end of the job is stored already
		a, err := t.Submit(ctx, &taskqueue.StoreKeys{Writes: []taskqueue.Write{{Key: rendezvous.Key, Value: value}}})
		if err := cmp.Or(err, a.Err); err != nil {
			return 0, err
		}
	}
	r.adopt(d, isNew, before)
	//guard:closed-ring-ends-job
	if d.Ring.Closed != "" && over == "" && !hasData {
		a, err := t.Submit(ctx, &taskqueue.EndJob{Reason: "the ring is closed: " + d.Ring.Closed})
		return d.Rest, cmp.Or(err, a.Err)
	}
	return r.noteWait(d, t.Clock().Now()), nil
}

// noteWait notes a ring that has waited for members for Config.LongWait, and logs it once. It returns the time until the next round.
func (r *Ring) noteWait(d rendezvous.Decision, now time.Time) (rest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d.Waiting == "" {
		r.waits, r.stuck = time.Time{}, ""
		return d.Rest
	}
	if r.waits.IsZero() {
		r.waits = now
	}
	if left := r.config.LongWait - now.Sub(r.waits); left > 0 {
		if d.Rest < 0 {
			return left
		}
		return min(d.Rest, left)
	}
	//guard:long-wait-reported
	if r.stuck == "" {
		r.config.Log.WithField("reason", d.Waiting).Warn("the ring waits for members: their programs do not run")
	}
	r.stuck = d.Waiting
	return d.Rest
}

// Stuck returns why the ring has had no generation for 30 s; "": it has one, has waited less, or is closed.
func (r *Ring) Stuck() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stuck
}

// adopt applies a decision that is stored.
func (r *Ring) adopt(d rendezvous.Decision, isNew bool, before rendezvous.Ring) {
	for _, l := range d.Lost {
		r.config.Log.WithFields(logrus.Fields{"member": l.ID, "reason": l.Reason}).Info("member removed from the ring")
	}
	if isNew {
		line := r.config.Log.WithFields(logrus.Fields{"generation": d.Ring.Number, "members": len(d.Ring.Members), "reason": d.Reason})
		switch {
		case d.Ring.Closed != "":
			line.Info("ring closed")
		case d.Ring.Number != before.Number:
			line.Info("ring formed")
		case d.Ring.Ended != before.Ended:
			line.Warn("ring ended, waiting for members")
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.Adopt(d)
	if isNew || len(d.Lost) > 0 || r.waiting != d.Waiting {
		r.waiting = d.Waiting
		r.broadcastLocked()
	}
}

// event changes the state and asks for a decision. It returns the term, and the channel that closes at the next change.
func (r *Ring) event(change func(s *rendezvous.State, now time.Time) error) (changed <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.term == nil {
		return nil, errNotLeader
	}
	if err := change(&r.state, r.term.Clock().Now()); err != nil {
		return nil, err
	}
	r.box.Wake()
	return r.changed, nil
}

// until waits until a condition holds for the stored ring.
func (r *Ring) until(ctx context.Context, holds func(rendezvous.State) bool) error {
	for {
		r.mu.Lock()
		leads, ok, changed := r.term != nil, holds(r.state), r.changed
		r.mu.Unlock()
		switch {
		case ok:
			return nil
		case !leads:
			return errNotLeader
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
