package committer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"trainmaster/taskqueue"
)

// Request is an event to apply, or a function that reads the committed queue.
type Request struct {
	Event taskqueue.Event
	Read  func(*taskqueue.Queue)
	Parts *Parts // written before Event; may be nil
	Waits bool   // the answer is held back while it waits for other trainers
}

// Parts are the parts of a task table.
type Parts struct {
	Writes   []taskqueue.Write
	Progress func(done, total int) // may be nil
}

// Pending is a request queued for the committer. answer and err are valid once done has a token.
type Pending struct {
	Request
	ctx   context.Context
	until time.Time // limit of a long poll; zero before the first answer

	answer   taskqueue.Answer
	finishes []taskqueue.FinishStatus // of the first application, when it was parked
	err      error
	dropped  bool // not to be applied: its caller went away, or it panicked
	done     chan struct{}

	number *atomic.Uint64 // of the last commit, for Answer
}

// finish gives the caller its answer.
func (o *Pending) finish(err error) {
	if o.err == nil {
		o.err = err
	}
	o.done <- struct{}{}
}

// drop keeps a request from being applied, also when its batch is applied once more.
func (o *Pending) drop(err error) { o.err, o.dropped = err, true }

// mustWait reports whether an answer is held back because it waits for other trainers.
func (o *Pending) mustWait() bool {
	w := o.answer.WaitFor
	return o.answer.Kind == taskqueue.AnswerWait && (w == taskqueue.WaitTask || w == taskqueue.WaitFlush || w == taskqueue.WaitStep)
}

// park prepares a request to be applied again: its finishes are counted, only its wish is left.
func (o *Pending) park(until time.Time) {
	if o.until.IsZero() {
		o.until = until
	}
	if o.finishes == nil {
		o.finishes = o.answer.Finishes
	}
	switch ev := o.Event.(type) {
	case *taskqueue.Request:
		ev.Finished = nil
	case *taskqueue.PlainAsk:
		ev.Finished = false
	case *taskqueue.StageGradients:
		ev.Epoch = o.answer.Epoch // a rollback refuses what was staged before it
	}
}

// inbox gathers the callers' requests for the committer.
type inbox struct {
	mu      sync.Mutex
	pending []*Pending
	target  int   // signal full at so many
	closed  error // why nothing is taken any more

	spare sync.Pool                                       // of Pending
	await func(ctx context.Context, done <-chan struct{}) // waits for an answer; nil: as any receiver
	some  chan struct{}                                   // at least one waits
	full  chan struct{}                                   // target wait
}

func newInbox() *inbox {
	return &inbox{
		spare: sync.Pool{New: func() any { return &Pending{done: make(chan struct{}, 1)} }},
		some:  make(chan struct{}, 1), full: make(chan struct{}, 1),
	}
}

// take appends everything that waits to dst.
func (b *inbox) take(dst []*Pending) []*Pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	dst = append(dst, b.pending...)
	clear(b.pending)
	b.pending = b.pending[:0]
	b.target = 0
	return dst
}

func (b *inbox) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pending)
}

// expect makes full signal once target requests wait. It returns false when they do already.
func (b *inbox) expect(target int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.full:
	default:
	}
	b.target = target
	return len(b.pending) < target
}

// close rejects new requests and returns the queued ones.
func (b *inbox) close(err error) []*Pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = err
	left := b.pending
	b.pending = nil
	return left
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Do queues a request for the committer and waits for the answer. The committer answers within a round, even if ctx has ended.
func (b *inbox) Do(ctx context.Context, r Request) (taskqueue.Answer, error) {
	o := b.spare.Get().(*Pending)
	o.ctx, o.Request = ctx, r
	b.mu.Lock()
	if b.closed != nil {
		defer b.mu.Unlock()
		return taskqueue.Answer{}, b.closed
	}
	b.pending = append(b.pending, o)
	first, full := len(b.pending) == 1, b.target > 0 && len(b.pending) == b.target
	b.mu.Unlock()
	if first {
		signal(b.some)
	}
	if full {
		signal(b.full)
	}
	if b.await != nil {
		b.await(ctx, o.done)
	} else {
		<-o.done
	}
	answer, err := o.answer, o.err
	if o.finishes != nil {
		answer.Finishes = o.finishes
	}
	*o = Pending{done: o.done}
	b.spare.Put(o)
	return answer, err
}
