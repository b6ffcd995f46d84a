package trainer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"trainmaster/taskqueue"
)

// ErrStopped is the cause of the end of a context of [Client.UntilStopped].
var ErrStopped = errors.New("the master has stopped the task: another trainer has it, or it is counted already")

// heldTasks are the tasks that the client has received and not reported.
type heldTasks struct {
	mu    sync.Mutex
	tasks map[taskqueue.Token]*heldTask
}

type heldTask struct {
	ctx    context.Context // ends with the task, or when the master stops it
	cancel context.CancelCauseFunc
}

func (h *heldTasks) begin(tok taskqueue.Token) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tasks == nil {
		h.tasks = map[taskqueue.Token]*heldTask{}
	}
	t := &heldTask{}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	h.tasks[tok] = t
}

func (h *heldTasks) end(tok taskqueue.Token) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.tasks[tok]; t != nil {
		t.cancel(nil)
		delete(h.tasks, tok)
	}
}

// list returns the tasks for a heartbeat.
func (h *heldTasks) list() []taskqueue.Token {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.tasks))
}

// stop stops a task, unless the client has reported it since: the order can be late. It returns true at the first stop.
func (h *heldTasks) stop(tok taskqueue.Token) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	//guard:client-stops-named-task
	t := h.tasks[tok]
	if t == nil || t.ctx.Err() != nil {
		return false
	}
	t.cancel(ErrStopped)
	return true
}

// stopped returns the tasks that the master has stopped.
func (h *heldTasks) stopped() (list []taskqueue.Token) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for tok, t := range h.tasks {
		if t.ctx.Err() != nil {
			list = append(list, tok)
		}
	}
	return list
}

func (h *heldTasks) of(tok taskqueue.Token) *heldTask {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tasks[tok]
}

// UntilStopped returns a context that also ends, with ErrStopped as its cause, when the master stops the task, and a function that releases
// it. The master stops a task that another trainer has received after its timeout, or that is counted already. The trainer then ends the
// work on the task and calls Next without it. A task that was reported, or is not of this client, is not stopped.
func (c *Client) UntilStopped(ctx context.Context, task *taskqueue.Task) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithCancelCause(ctx)
	stop := func() bool { return false }
	if held := c.held.of(task.Token); held != nil {
		stop = context.AfterFunc(held.ctx, func() {
			if cause := context.Cause(held.ctx); errors.Is(cause, ErrStopped) {
				cancel(cause)
			}
		})
	}
	return bounded, func() {
		stop()
		cancel(nil)
	}
}

// dropStopped forgets the tasks that the master has stopped, also a prefetched task.
func (c *Client) dropStopped() {
	for _, tok := range c.held.stopped() {
		c.drop(tok)
		if c.ready != nil && c.ready.Token == tok {
			c.ready = nil
		}
	}
}

// drop forgets a task without a result.
func (c *Client) drop(tok taskqueue.Token) {
	c.session.Drop(tok)
	c.held.end(tok)
	c.forget(tok)
}

// stopTask stops a task that the client still has.
func (c *Client) stopTask(tok taskqueue.Token) {
	if c.held.stop(tok) {
		c.config.Log.WithField("task", tok.String()).Info("task stopped by the master")
	}
}

// runningTask returns the task that the trainer works on; zero: none.
func (c *Client) runningTask() taskqueue.Token {
	tok, _ := c.iteration()
	return tok
}

// iteration returns the task that the trainer works on, and the number of calls of Progressed.
func (c *Client) iteration() (running taskqueue.Token, steps int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.running) > 0 {
		running = c.running[0]
	}
	return running, c.steps
}
