package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
	"trainmaster/trainer/session"
)

// conn is a connection of a trainer to a master.
type conn struct {
	trainer *trainer
	node    *node
	life    int // life of the node at the dial
	who     wire.Trainer
	broken  bool
	ctx     *connContext

	plain   string // name of a plain connection; otherwise empty
	pending bool   // the server handles a request
	ended   func() // called when the client notices the end; nil if it does not wait
}

// connContext ends with the connection, as the server sees it.
type connContext struct {
	context.Context
	err error
}

func (c *connContext) Err() error { return c.err }

// breaks breaks a connection. Each side notices it after a network delay.
func (c *conn) breaks() {
	if c.broken {
		return
	}
	c.broken = true
	n, t := c.node, c.trainer
	if n.run == c.life {
		n.after(n.world.netDelay(), func() {
			c.ctx.err = context.Canceled
			if !c.pending { // otherwise disconnected follows the answer
				n.disconnected(c)
			}
		})
	}
	t.after(n.world.netDelay(), func() {
		if t.conn == c {
			t.conn = nil
		}
		for _, call := range slices.Clone(t.calls) {
			if call.conn == c {
				call.fails(io.ErrUnexpectedEOF)
			}
		}
		if c.ended != nil {
			c.ended()
		}
	})
}

// habit is the behavior of a trainer.
type habit struct {
	task       [2]time.Duration // bounds of the time that a task takes
	fails      float64          // probability that it fails a task
	hangsAfter int              // number of tasks until it hangs and sends only heartbeats; 0: never
	moving     bool             // its heartbeats report progress
	leaves     float64          // probability that it leaves after a task, and joins again
	silent     bool             // it does not restart after a crash
	plain      bool             // it uses plain connections
	reuses     bool             // a plain client that reuses its reply variable
	evaluates  bool             // it accepts evaluation tasks
	byID       bool             // a plain client that names tasks by numbers, and repeats a finish on its next connection

	window int // tasks of its window; 0: none
}

// trainer is the process of a trainer. It models the client around trainer/session.
type trainer struct {
	*machine
	world    *world
	id       string
	habit    habit
	leader   announced
	conn     *conn
	calls    []*call
	beat     *call
	who      wire.Trainer
	moving   []taskqueue.Token
	unsent   taskqueue.Task // finished by a plain client, without an answer
	jobEnded bool           // received the end of the job
	hung     bool
	died     time.Duration
}

// call is a request that the client repeats until it is answered.
type call struct {
	t       *trainer
	request any
	conn    *conn
	tries   int
	done    bool
	reply   any
	err     error
	wake    func()
}

func (t *trainer) boot() {
	if t.up {
		return
	}
	t.conn, t.calls, t.beat, t.who, t.moving = nil, nil, nil, wire.Trainer{}, nil
	t.start(func(p *process) {
		t.watchLeader()
		for !t.jobEnded && (t.habit.plain && t.runPlain(p) || !t.habit.plain && t.session(p)) {
		}
	})
}

// watchLeader watches the address of the leader.
func (t *trainer) watchLeader() {
	life := t.run
	look := func() {
		var next announced
		if kv := t.world.etcd.keys[addrKey]; kv != nil {
			if err := json.Unmarshal(kv.Value, &next); err != nil {
				panic(err)
			}
		}
		if next == t.leader {
			return
		}
		t.leader = next
		for _, c := range slices.Clone(t.calls) {
			c.tries = 0
			c.attempt()
		}
	}
	t.world.etcd.changed = append(t.world.etcd.changed, func(key string) {
		if key == addrKey && t.run == life {
			t.after(t.world.watchDelay(), look)
		}
	})
	look()
}

func (t *trainer) call(request any) *call {
	c := &call{t: t, request: request}
	t.calls = append(t.calls, c)
	c.attempt()
	return c
}

// collect waits for the answer.
func (c *call) collect(p *process) (any, error) {
	for !c.done {
		p.wait(func(wake func()) { c.wake = wake })
	}
	return c.reply, c.err
}

// attempt sends the request to the leader. Without a leader, follow calls it again later.
func (c *call) attempt() {
	t := c.t
	c.conn = nil
	if c.done || t.leader.Addr == "" {
		return
	}
	var n *node
	for _, other := range t.world.nodes {
		if other.addr == t.leader.Addr {
			n = other
		}
	}
	if t.conn != nil && (t.conn.node != n || t.conn.broken) {
		t.conn.breaks()
		t.conn = nil
	}
	if t.conn == nil {
		if !n.up {
			t.after(t.world.netDelay(), func() { c.fails(io.EOF) })
			return
		}
		t.conn = &conn{trainer: t, node: n, life: n.run, ctx: &connContext{Context: context.Background()}}
		n.conns = append(n.conns, t.conn)
	}
	c.conn = t.conn
	t.world.send(c)
}

// fails handles an error: it finishes the call if the error is an answer, and otherwise retries.
func (c *call) fails(err error) {
	if c.done {
		return
	}
	if session.Classify(err) == session.Answered {
		c.finish(nil, err)
		return
	}
	c.conn = nil
	if t := c.t; t.conn != nil && !t.conn.broken && errors.Is(err, wire.ErrNotLeader) {
		t.conn.breaks()
		t.conn = nil
	}
	pause := session.Backoff(c.tries, c.t.rng.Float64())
	c.tries++
	tries := c.tries
	c.t.after(pause, func() {
		if c.tries == tries && c.conn == nil {
			c.attempt()
		}
	})
}

func (c *call) finish(reply any, err error) {
	c.done, c.reply, c.err = true, reply, err
	c.t.calls = slices.DeleteFunc(c.t.calls, func(o *call) bool { return o == c })
	if c.wake != nil {
		c.wake()
	}
}

// session joins and trains until the session ends. It returns false if the job has ended.
func (t *trainer) session(p *process) bool {
	reply, err := t.call(wire.JoinRequest{ID: t.id, Window: t.habit.window}).collect(p)
	if err != nil {
		p.sleep(t.between(100*time.Millisecond, time.Second))
		return true
	}
	joined := reply.(*wire.JoinReply)
	t.who, t.beat = joined.Trainer, nil
	t.heartbeat(joined.Trainer)
	w := &worker{trainer: t, p: p, session: session.New(joined), own: ownModel{by: t.id, loss: 1}}
	if t.habit.evaluates {
		w.session.Accepts = taskqueue.KindsOf(taskqueue.Training, taskqueue.Evaluation)
	}
	if t.world.plan.cuts {
		return t.sessionEnded(p, w.withCuts(joined.Epoch))
	}
	if t.world.plan.exact {
		return t.sessionEnded(p, w.inRing())
	}
	if t.habit.window > 0 {
		return t.sessionEnded(p, w.windowed(joined.Window))
	}
	for tasks := 1; ; tasks++ {
		task, err := w.next()
		switch {
		case errors.Is(err, wire.ErrJobFinished), errors.Is(err, wire.ErrJobFailed):
			t.jobEnded = true
			t.leave(p)
			return false
		case err != nil:
			return true
		}
		w.train(task, tasks)
		if t.chance(t.habit.leaves) && t.now < t.world.plan.quiet {
			t.leave(p)
			p.sleep(t.between(100*time.Millisecond, 5*time.Second))
			return true
		}
	}
}

// sessionEnded handles the end of a session. It returns false if the job has ended.
func (t *trainer) sessionEnded(p *process, err error) bool {
	switch {
	case errors.Is(err, wire.ErrJobFinished), errors.Is(err, wire.ErrJobFailed):
		t.jobEnded = true
		t.leave(p)
		return false
	case errors.Is(err, errLeaves):
		t.leave(p)
		p.sleep(t.between(100*time.Millisecond, 5*time.Second))
	case errors.Is(err, wire.ErrRolledBack) && t.world.plan.cuts:
		t.leave(p)
	case !errors.Is(err, wire.ErrRejoin):
		t.world.check.unexpectedError(t, err)
		p.sleep(t.between(50*time.Millisecond, 500*time.Millisecond))
	}
	t.moving = nil
	return true
}

func (t *trainer) leave(p *process) {
	who := t.who
	t.who = wire.Trainer{}
	t.world.check.leaves(who)
	c := t.call(wire.LeaveRequest{Trainer: who})
	p.wait(func(wake func()) {
		c.wake = wake
		t.after(2*time.Second, wake)
	})
}

// heartbeat sends heartbeats until the trainer has another session.
func (t *trainer) heartbeat(who wire.Trainer) {
	t.after(t.world.plan.heartbeat, func() {
		if t.who != who {
			return
		}
		t.heartbeat(who)
		if t.beat == nil || t.beat.done {
			t.beat = t.call(wire.HeartbeatRequest{Trainer: who, Moving: t.moving})
		}
	})
}

// worker models trainer.Client in virtual time.
type worker struct {
	*trainer
	p               *process
	session         *session.Session
	flight          *call
	ready           *taskqueue.Task
	more            []*taskqueue.Task     // with ready
	base            int64                 // base of ready
	round           taskqueue.Round       // of ready
	taken           taskqueue.Round       // of the task that next has returned
	own             ownModel              // of a population
	from, takenFrom taskqueue.ModelSource // model of a population: of ready, and of the task that next has returned
	waits           taskqueue.WaitFor
	batches         int // mini-batches of this session
}

func (w *worker) send(want bool) {
	w.flight = w.call(w.session.Next(want, taskqueue.Progress{}))
}

// collect waits for the answer to the request in progress. It returns errors that end the session.
// It retries after other errors, as users do.
func (w *worker) collect() error {
	for w.flight != nil {
		reply, err := w.flight.collect(w.p)
		w.flight = nil
		switch {
		case err == nil:
			r := reply.(*wire.NextReply)
			w.waits = r.WaitFor
			if task := w.session.Answered(r); task != nil {
				w.note("%s: gets task %d, %v", w.name, task.Index, task.Token)
				w.ready, w.base, w.round, w.from = task, r.Base, r.Round, r.From
				for i := range r.More {
					w.more = append(w.more, &r.More[i].Task)
				}
			}
		case errors.Is(err, wire.ErrJobFinished), errors.Is(err, wire.ErrJobFailed), errors.Is(err, wire.ErrRejoin), errors.Is(err, wire.ErrRolledBack):
			w.session.Settled()
			return err
		default:
			w.world.check.unexpectedError(w.trainer, err)
			w.p.sleep(w.between(50*time.Millisecond, 500*time.Millisecond))
			w.send(true)
		}
	}
	return nil
}

// next waits for a task, and requests the following task in advance.
func (w *worker) next() (*taskqueue.Task, error) {
	if err := w.collect(); err != nil {
		return nil, err
	}
	for w.ready == nil {
		w.send(true)
		if err := w.collect(); err != nil {
			return nil, err
		}
	}
	task := w.ready
	w.ready, w.taken, w.takenFrom = nil, w.round, w.from
	w.send(true)
	return task, nil
}

// windowed trains with a window: it holds several tasks, trains them in any order, and reports several results at the same time.
func (w *worker) windowed(size int) error {
	var held []*taskqueue.Task
	for nth := 1; ; {
		w.session.Most = 1 + w.rng.IntN(max(1, size-len(held)))
		w.send(len(held) < size)
		if err := w.collect(); err != nil {
			return err
		}
		if w.ready != nil {
			held = append(append(held, w.ready), w.more...)
			w.ready, w.more = nil, nil
		}
		for n := w.rng.IntN(len(held) + 1); n > 0 || len(held) == size; n-- {
			i := w.rng.IntN(len(held))
			w.train(held[i], nth)
			nth++
			held = append(held[:i], held[i+1:]...)
		}
		if w.chance(w.habit.leaves) && w.now < w.world.plan.quiet {
			return errLeaves
		}
	}
}

// train trains a task and reports the result.
func (w *worker) train(task *taskqueue.Task, nth int) {
	h := w.habit
	if h.moving {
		w.moving = []taskqueue.Token{task.Token}
	}
	w.hangs(w.p, task.Token, nth)
	w.p.sleep(w.between(h.task[0], h.task[1]))
	reason := w.poisoned(w.p, task.Index+task.Token.Dataset*w.world.plan.tasks) // only training tasks have poison
	w.moving = nil
	result := taskqueue.Result{Token: task.Token, Error: reason}
	switch {
	case w.world.plan.heldOut == 0 || reason != "":
	case task.Token.Kind == taskqueue.Evaluation && w.losesFigure():
		result.Error, result.NotFinite = "loss is NaN", "loss"
	case task.Token.Kind == taskqueue.Evaluation:
		result.Metrics = w.measure(task)
	default:
		w.world.models++
		result.Model = taskqueue.Model{Path: fmt.Sprintf("models/%d", w.world.models), Version: w.world.models}
		if w.world.plan.population != nil {
			result.Kept = w.continues(task)
			w.stores(result.Model.Path)
		}
	}
	w.session.Report(result)
}

// hangs blocks forever if the trainer hangs at its nth task.
func (t *trainer) hangs(p *process, token taskqueue.Token, nth int) {
	if t.habit.hangsAfter > 0 && nth >= t.habit.hangsAfter {
		t.note("%s: hangs on %v", t.name, token)
		t.hung = true
		for {
			p.sleep(time.Hour)
		}
	}
}

// poisoned returns the reason why a task fails, or "". Some tasks crash the trainer.
func (t *trainer) poisoned(p *process, index int) (reason string) {
	switch poison := t.world.plan.poison[index]; {
	case poison == poisonCrash && t.chance(0.9):
		t.loop.after(0, t.die)
		p.sleep(time.Hour)
	case poison != 0 || t.chance(t.habit.fails) && t.now < t.world.plan.quiet:
		return "task failed"
	}
	return ""
}

// die crashes the process. Unless habit.silent is set, it restarts within 8 s.
func (t *trainer) die() {
	if !t.up || t.jobEnded {
		return
	}
	t.note("%s: dies", t.name)
	c, who := t.conn, t.who
	t.crash()
	t.died = t.now
	if c != nil {
		c.breaks()
	}
	if t.habit.window > 0 && t.chance(0.5) {
		t.loop.after(t.between(time.Millisecond, 20*time.Millisecond), func() { t.reportsDeath(who) })
	} else if t.chance(0.5) {
		t.loop.after(t.between(time.Millisecond, 90*time.Millisecond), t.gone)
	}
	if !t.habit.silent {
		t.loop.after(t.between(100*time.Millisecond, 8*time.Second), t.boot)
	}
}

// reportsDeath reports the death of the process to all masters, as its agent does.
func (t *trainer) reportsDeath(who wire.Trainer) {
	for _, n := range t.world.nodes {
		if n.up {
			n.put(nil, &taskqueue.Died{Trainer: who.Ordinal, Incarnation: who.Incarnation}, t.world.check.hasGone(t.name))
		}
	}
}

// gone reports the end of the process to all masters, as their component for pods does.
func (t *trainer) gone() {
	for _, n := range t.world.nodes {
		if !t.up && n.up {
			n.put(nil, &taskqueue.Gone{ID: t.name, Charge: t.chance(0.5)}, t.world.check.hasGone(t.name))
		}
	}
}

func trainerName(i int) string { return fmt.Sprintf("t%d", i) }
