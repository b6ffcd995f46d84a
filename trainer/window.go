package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"trainmaster/dataset"
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// Window is a session that holds several tasks and requests tasks ahead. It is for a program whose batches consist of several tasks, or which
// takes its tasks by another process. A goroutine makes the requests, one at a time. The methods note outcomes for its next request, and
// may be called concurrently.
//
// As many tasks are requested ahead as were taken in the last 100 ms, at least one, when less than half of them are left. A fast trainer does not
// wait, and a slow trainer leaves the tasks to others. A request reports the finished tasks. Without a need for tasks, or after an answer that there is
// none, it waits up to 100 ms for more finishes: each request is a commit of the master.
type Window struct {
	client *Client
	size   int // tasks that may be held
	ctx    context.Context
	stop   context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	changed chan struct{} // closed at the next change

	// The tasks.
	ready   []*taskqueue.Task // received, not taken
	handed  []taskqueue.Token // taken and not reported, in the order of their dispatch
	stopped []taskqueue.Token // among them, and not returned by Stopped
	taken   []time.Time       // of the tasks taken lately

	// The requests.
	wanted   int               // tasks that the waiting calls of Take want.
	sent     uint64            // number of requests.
	flying   bool              // the last request is not answered.
	fresh    uint64            // number of the request whose answer, or a later answer, is needed.
	refusal  taskqueue.WaitFor // the reason in the last answer.
	refused  bool              // the last answer to a request for tasks had none.
	pollAt   time.Time         // time of the next request after a refusal, while tasks are held.
	paused   int               // calls in progress during which no request is sent.
	reportBy time.Time         // time of the request that reports the tasks that were finished since the last request.
	entered  bool              // see Client.enter.
	dropped  bool              // the next request returns prefetched tasks, because of a drain.
	err      error             // set: no further request is made.
}

// Bounds of a window.
const (
	MinWindow = taskqueue.MinWindow
	MaxWindow = taskqueue.MaxWindow
)

const (
	aheadSpan = 100 * time.Millisecond // the tasks that were taken within are requested ahead.
	mostDelay = 100 * time.Millisecond // of a finish.
	pollPause = 100 * time.Millisecond // between requests of a trainer that holds tasks and waits for more.
	freshWait = 100 * time.Millisecond // for the answer to a new request, if the caller does not wait longer
)

// errOwnModel is why a program with a window continues with its own model in a population.
var errOwnModel = errors.New("a trainer of the Python package receives no models and no hyper-parameters of a population")

// endError is the end of the job.
type endError struct{ error }

func (e endError) Is(target error) bool { return target == io.EOF }
func (e endError) Unwrap() error        { return e.error }

// JoinWindow begins a session with a window of Config.Window tasks. Close ends it.
func JoinWindow(ctx context.Context, config Config) (*Window, error) {
	c, err := Join(ctx, config)
	if err != nil {
		return nil, err
	}
	w := &Window{client: c, size: max(MinWindow, c.window), changed: make(chan struct{}), done: make(chan struct{})}
	w.ctx, w.stop = context.WithCancel(c.ctx)
	go w.run()
	return w, nil
}

// Client returns the client of the session, for Ordinal, Incarnation, JobID, Sync, Cuts, Epoch, Explicit, ReportDataset,
// RequestSaveModel, Progressed and UntilFailed.
func (w *Window) Client() *Client { return w.client }

// Size returns the number of tasks that may be held.
func (w *Window) Size() int { return w.size }

// run makes requests until the session ends.
func (w *Window) run() {
	defer close(w.done)
	c, drained := w.client, w.client.drained
	for {
		w.mu.Lock()
		want, send, wake := w.due(time.Now())
		if !send {
			changed := w.changed
			w.mu.Unlock()
			var alarm <-chan time.Time
			if !wake.IsZero() {
				alarm = time.After(time.Until(wake))
			}
			select {
			case <-changed:
			case <-alarm:
			case <-drained:
				drained = nil
			case <-w.ctx.Done():
				return
			}
			continue
		}
		if c.window > 0 {
			c.session.Most = max(1, want)
		}
		c.mu.Lock()
		request := c.session.Next(want > 0, c.progress)
		c.mu.Unlock()
		w.sent++
		w.flying, w.dropped = true, false
		w.reportBy = time.Time{}
		w.mu.Unlock()
		reply, err := call[wire.NextReply](w.ctx, c.link, "Next", request)
		if w.ctx.Err() != nil {
			return // Close repeats the request if it reports tasks
		}
		w.mu.Lock()
		w.flying = false
		w.accept(request.Want, reply, err)
		w.changedLocked()
		w.mu.Unlock()
	}
}

func (w *Window) changedLocked() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// due decides about the next request: the number of tasks to ask for, or when to decide again; zero: at the next change.
func (w *Window) due(now time.Time) (want int, send bool, wake time.Time) {
	s := w.client.session
	if w.paused > 0 || w.err != nil {
		return 0, false, wake
	}
	unsaid, held := s.Unsaid(), s.Unfinished()
	//guard:window-asks-for-several
	if target := max(w.wanted, w.ahead(now)); 2*len(w.ready) < target {
		want = max(0, min(target-len(w.ready), w.size-held))
	}
	w.dropIfDraining()
	switch {
	//guard:drained-window-returns-the-rest
	case w.dropped:
		return 0, true, wake // others can have them now
	//guard:window-reports-before-it-waits
	case unsaid && held == 0:
		return 0, true, wake // a request for a task could wait for 10 s, and its finishes with it
	//guard:window-collects-finishes
	case unsaid && (want == 0 || w.refused && w.refusal == taskqueue.WaitTask && w.wanted == 0) && now.Before(w.reportBy):
		return 0, false, w.reportBy // without a task in the last answer, the next request for tasks ahead has time, too
	case unsaid:
		return want, true, wake
	case want == 0:
		return 0, false, wake
	case !w.refused || w.fresh > w.sent:
		return want, true, wake
	case w.wanted == 0, w.refusal != taskqueue.WaitTask:
		return 0, false, wake
	case held == 0:
		return want, true, wake // the master answers when there is a task
	case now.Before(w.pollAt):
		return 0, false, w.pollAt
	}
	return want, true, wake
}

// ahead returns the number of tasks to have ready.
func (w *Window) ahead(now time.Time) int {
	for len(w.taken) > 0 && now.Sub(w.taken[0]) > aheadSpan {
		w.taken = w.taken[1:]
	}
	if len(w.handed) == 0 {
		return 0
	}
	//guard:ahead-by-need
	return max(1, len(w.taken))
}

// accept takes the answer to a request.
func (w *Window) accept(wanted bool, reply *wire.NextReply, err error) {
	c := w.client
	if err != nil {
		answer := c.refused(err)
		if errors.Is(answer, io.EOF) {
			answer = endError{err}
		}
		w.err = answer
		return
	}
	task := c.session.Answered(reply)
	if wanted {
		w.refused, w.refusal, w.pollAt = task == nil, reply.WaitFor, time.Now().Add(pollPause)
	}
	if task == nil {
		return
	}
	w.receive(task, reply.Stamps, reply.Base)
	if reply.From != (taskqueue.ModelSource{}) {
		//guard:window-keeps-its-model
		c.KeptModel(task, errOwnModel)
		c.config.Log.WithError(errOwnModel).Warn("this trainer keeps its model, although the population of the job gives it another one")
	}
	for i := range reply.More {
		more := &reply.More[i]
		w.receive(&more.Task, more.Stamps, more.Base)
	}
}

// receive adds a task to the ready ones.
func (w *Window) receive(task *taskqueue.Task, stamps []dataset.Stamp, base int64) {
	c := w.client
	c.stamps[task.Token] = stamps
	if c.explicit == nil {
		c.held.begin(task.Token)
	} else {
		//guard:window-task-has-base
		c.explicit.Begin(task.Token, base)
	}
	w.ready = append(w.ready, task)
}

// dropIfDraining drops the tasks that the caller does not have, because an operator drains the trainer: others get them. The first task stays, if
// the caller has none. An answer that was sent before the drain can arrive later than the notice of the drain, and have further tasks.
func (w *Window) dropIfDraining() {
	c := w.client
	if !c.Draining() || c.explicit != nil {
		return
	}
	rest := w.ready
	if len(w.handed) == 0 && len(rest) > 0 {
		rest = rest[1:]
	}
	for _, task := range rest {
		c.drop(task.Token)
	}
	w.ready = w.ready[:len(w.ready)-len(rest)]
	//guard:late-answer-is-returned-too
	w.dropped = w.dropped || len(rest) > 0
}

// dropStopped forgets the tasks that the master has stopped.
func (w *Window) dropStopped() {
	for _, tok := range w.client.held.stopped() {
		w.client.drop(tok)
		w.ready = slices.DeleteFunc(w.ready, func(t *taskqueue.Task) bool { return t.Token == tok })
		if slices.Contains(w.handed, tok) {
			w.stopped = append(w.stopped, tok)
		}
	}
}

// Stopped returns the tasks that the master has stopped since the last call. A finish of a stopped task is still reported, and counts if the
// task is not counted yet.
func (w *Window) Stopped() []taskqueue.Token {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropStopped()
	list := w.stopped
	w.stopped = nil
	return list
}

// Why says why Take has returned no task.
type Why int

// The reasons.
const (
	HasTasks      Why = iota
	NoTask            // there is none now.
	NoAnswer          // no master has answered in the time.
	Full              // the window is full: report a task first
	NeedsCommit       // see ErrCommitFirst
	NeedsRollback     // see ErrRollbackFirst
	NeedsCut          // the master takes a cut: call Boundary
	Drained           // an operator drains the trainer.
)

var whys = map[taskqueue.WaitFor]Why{taskqueue.WaitCommit: NeedsCommit, taskqueue.WaitRollback: NeedsRollback, taskqueue.WaitCut: NeedsCut, taskqueue.WaitDrain: Drained}

// Wish is what a call of Take wants.
type Wish struct {
	Most int           // tasks
	Wait time.Duration // for a task, if there is none
	Now  bool          // return as soon as a master has answered that there is none now
}

// Take returns up to wish.Most tasks, at least one, in the order in which they must be begun. If there is none, it waits, and returns the reason. It
// returns immediately if only the caller can change the reason. After the end of the job, the error matches io.EOF.
func (w *Window) Take(ctx context.Context, wish Wish) ([]*taskqueue.Task, Why, error) {
	most, began := max(1, wish.Most), time.Now()
	until := began.Add(wish.Wait)
	if err := w.enter(ctx); err != nil {
		return nil, NoTask, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted += most
	defer func() { w.wanted -= most }()
	fresh := w.sent + 1 // the next request
	w.fresh = fresh
	w.changedLocked()
	for {
		w.dropStopped()
		w.dropIfDraining()
		answered := w.sent
		if w.flying {
			answered--
		}
		now := time.Now()
		switch {
		case len(w.ready) > 0:
			return w.give(min(most, len(w.ready)), now), HasTasks, nil
		case w.err != nil:
			return nil, NoTask, w.err
		case w.client.session.Unfinished() >= w.size:
			return nil, Full, nil
		case answered >= fresh && w.refused && w.refusal != taskqueue.WaitTask:
			return nil, whys[w.refusal], nil
		case (wish.Now || !now.Before(until)) && answered >= fresh && w.refused:
			return nil, NoTask, nil
		case !now.Before(until) && (answered >= fresh || now.Sub(began) >= freshWait):
			return nil, NoAnswer, nil
		}
		limit := until
		if answered < fresh && until.Before(began.Add(freshWait)) {
			limit = began.Add(freshWait)
		}
		if err := w.awaitLocked(ctx, limit); err != nil {
			return nil, NoTask, err
		}
	}
}

// awaitLocked waits for a change, or until a time.
func (w *Window) awaitLocked(ctx context.Context, until time.Time) error {
	changed := w.changed
	w.mu.Unlock()
	defer w.mu.Lock()
	timer := time.NewTimer(max(0, time.Until(until)))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.ctx.Done():
		return ErrSessionLost
	}
	return nil
}

// give returns the first n ready tasks, and notes that the caller has them.
func (w *Window) give(n int, now time.Time) []*taskqueue.Task {
	tasks := slices.Clone(w.ready[:n])
	w.ready = w.ready[n:]
	for _, t := range tasks {
		w.handed = append(w.handed, t.Token)
		w.taken = append(w.taken, now)
	}
	w.client.run(slices.Clone(w.handed)...)
	w.changedLocked()
	return tasks
}

// enter makes this trainer a member before its first task, in a job with cuts.
func (w *Window) enter(ctx context.Context) error {
	c := w.client
	if c.cuts == nil {
		return nil
	}
	w.mu.Lock()
	entered := w.entered
	w.entered = true
	w.mu.Unlock()
	if entered {
		return nil
	}
	reply, err := c.requestEntry(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		err = c.stepRefused(err, "begin")
	} else {
		err = c.applyEntry(reply) // the goroutine of the requests reads what it changes
	}
	w.entered = err == nil
	return err
}

// Finished notes that tasks are finished. A task that was dropped has no effect.
func (w *Window) Finished(tasks ...*taskqueue.Task) { w.report("", tasks...) }

// Failed notes that a task could not be trained.
func (w *Window) Failed(task *taskqueue.Task, reason string) { w.report(reason, task) }

func (w *Window) report(reason string, tasks ...*taskqueue.Task) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.client
	for _, task := range tasks {
		at := slices.Index(w.handed, task.Token)
		if at < 0 {
			continue // reported, or dropped by a rollback
		}
		w.handed = slices.Delete(w.handed, at, at+1)
		result := taskqueue.Result{Token: task.Token, Error: reason, Step: c.explicit.Finish(task.Token)}
		if reason == "" {
			result.Kept = c.kept[task.Token]
		}
		c.session.Report(result)
		c.held.end(task.Token)
		c.forget(task.Token)
		if w.reportBy.IsZero() {
			w.reportBy = time.Now().Add(mostDelay)
		}
	}
	c.run(slices.Clone(w.handed)...)
	w.changedLocked()
}

// Reported returns when the master has stored all finishes and failures that were noted before.
func (w *Window) Reported(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	//guard:awaited-finishes-are-reported-at-once
	w.reportBy = time.Time{}
	w.changedLocked()
	for w.client.session.Unsaid() {
		if errors.Is(w.err, io.EOF) {
			return nil
		}
		if w.err != nil {
			return w.err
		}
		if err := w.awaitLocked(ctx, time.Now().Add(time.Hour)); err != nil {
			return err
		}
	}
	return nil
}

// Stamps returns the stamps of the files of a task, in the order of their first chunk.
func (w *Window) Stamps(task *taskqueue.Task) []dataset.Stamp {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.client.stamps[task.Token]
}

// Base is [Client.Base].
func (w *Window) Base(task *taskqueue.Task) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.client.Base(task)
}

// Applied is [Client.Applied].
func (w *Window) Applied(task *taskqueue.Task, step uint64, records int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.client.Applied(task, step, records)
}

// LastStep is [Client.LastStep]. dropped reports that tasks of an older epoch were dropped.
func (w *Window) LastStep(ctx context.Context) (place taskqueue.StepPlace, dropped bool, err error) {
	return w.place(ctx, "LastStep", wire.LastStepRequest{Trainer: w.client.who}, "ask which step to load")
}

// Rollback is [Client.Rollback].
func (w *Window) Rollback(ctx context.Context, step, generation uint64) (place taskqueue.StepPlace, dropped bool, err error) {
	return w.place(ctx, "Rollback", wire.StepRequest{Trainer: w.client.who, Generation: generation, Step: step}, fmt.Sprintf("roll back to step %d", step))
}

// place makes a call whose answer can begin an epoch. No request is in progress at the same time: its answer could be of the earlier epoch.
func (w *Window) place(ctx context.Context, method string, request any, what string) (place taskqueue.StepPlace, dropped bool, err error) {
	c := w.client
	if c.explicit == nil {
		return place, false, ErrNotExplicit
	}
	w.mu.Lock()
	w.paused++
	defer func() {
		w.paused--
		w.changedLocked()
		w.mu.Unlock()
	}()
	for w.flying {
		if err := w.awaitLocked(ctx, time.Now().Add(time.Hour)); err != nil {
			return place, false, err
		}
	}
	if w.err != nil && !errors.Is(w.err, ErrRolledBack) {
		return place, false, w.err
	}
	w.mu.Unlock()
	reply, err := call[wire.StepReply](ctx, c.link, method, request)
	w.mu.Lock()
	if err != nil {
		return place, false, c.stepRefused(err, what)
	}
	place = reply.Place
	if c.session.Adopt(place.Epoch) {
		dropped = len(w.handed) > 0
		w.ready, w.handed, w.stopped = nil, nil, nil
		c.explicit.Drop()
		clear(c.stamps)
		c.run()
	}
	c.explicit.Generation = place.Generation
	w.err, w.refused = nil, false
	return place, dropped, nil
}

// Flushed is [Client.Flushed].
func (w *Window) Flushed(ctx context.Context, step uint64) error {
	c := w.client
	if c.explicit == nil {
		return ErrNotExplicit
	}
	if err := w.Reported(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	request := wire.FlushedRequest{Trainer: c.who, Generation: c.explicit.Generation, Step: step, Positions: c.explicit.Positions(step)}
	w.mu.Unlock()
	if _, err := call[wire.StepReply](ctx, c.link, "Flushed", request); err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		return c.stepRefused(err, fmt.Sprintf("flush step %d", step))
	}
	return nil
}

// Commit is [Client.Commit].
func (w *Window) Commit(ctx context.Context, step uint64) error {
	c := w.client
	if c.explicit == nil {
		return ErrNotExplicit
	}
	w.mu.Lock()
	request := wire.StepRequest{Trainer: c.who, Generation: c.explicit.Generation, Step: step}
	w.mu.Unlock()
	for {
		reply, err := call[wire.StepReply](ctx, c.link, "Commit", request)
		w.mu.Lock()
		switch {
		case err != nil:
			err = c.stepRefused(err, fmt.Sprintf("commit step %d", step))
			w.mu.Unlock()
			return err
		case reply.Done:
			c.explicit.Committed(step)
			w.refused = false // there can be tasks again
			w.changedLocked()
			w.mu.Unlock()
			return nil
		}
		w.mu.Unlock()
	}
}

// Close reports finished tasks, returns unfinished tasks to the queue, and ends the session. After Abandon, it only waits for the goroutines.
func (w *Window) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	_ = w.Reported(ctx) // Close of the client tries once more
	cancel()
	w.stop()
	<-w.done
	c := w.client
	if c.ctx.Err() != nil { // abandoned
		c.owned.Wait()
		c.link.close()
		return nil
	}
	if errors.Is(w.err, io.EOF) {
		c.ended = true
	}
	return c.Close()
}

// Abandon ends the session of a trainer that has died: finished tasks are reported, the others return to the queue, and the loss is charged to the task
// in hand. It does not wait for the other goroutines of the session.
func (w *Window) Abandon() error {
	c := w.client
	c.stop()
	<-w.done
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	//guard:finishes-before-the-loss
	w.reportRest(ctx)
	_, err := call[int](ctx, c.link, "Leave", wire.LeaveRequest{Trainer: c.who, Lost: true})
	return err
}

// reportRest reports the finished tasks after the last request. If the master accepts none, they are dispatched again.
func (w *Window) reportRest(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.client.session
	for s.Unsaid() {
		reply, err := call[wire.NextReply](ctx, w.client.link, "Next", s.Next(false, w.client.progress))
		if err != nil {
			return
		}
		s.Answered(reply)
	}
}
