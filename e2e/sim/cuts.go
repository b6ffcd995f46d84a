package sim

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"trainmaster/master/netrpc/wire"
	"trainmaster/pserver/table"
	"trainmaster/taskqueue"
	"trainmaster/trainer/session"
)

// Histories of cuts. The leader takes cuts and rolls the job back with the production code
// (pscontrol.Control.Checkpoints). Trainers push to the servers and quiesce for each cut.

// cutter is a trainer of a job with cuts. It models trainer.Client, including its cuts, and the user's loop.
type cutter struct {
	*worker
	steps  *session.Steps
	epoch  uint32
	step   uint64 // step that contains its records
	wanted uint64 // the cut that waits for this trainer
	task   *taskqueue.Task
	nth    int

	pushes    uint64
	committed uint64 // the last known version of a synchronous job
	data      [servers]*dataConn
}

// withCuts trains until the session ends, and returns the cause.
func (w *worker) withCuts(epoch uint32) error {
	m := &cutter{worker: w, steps: session.NewSteps(), epoch: epoch}
	for i := range m.data { // the parameters must exist before the first request for a task
		if err := m.deliver(i, nil); err != nil {
			return err
		}
	}
	if err := m.enter(); err != nil {
		return err
	}
	for {
		if err := m.turn(); err != nil {
			return err
		}
		if m.now < m.world.plan.quiet && m.chance(m.habit.leaves/4) {
			return errLeaves
		}
	}
}

// enter registers the trainer as a member before its first task.
func (m *cutter) enter() error {
	for {
		reply, err := m.call(wire.LastStepRequest{Trainer: m.who, Epoch: m.epoch}).collect(m.p)
		if err != nil {
			return err
		}
		r := reply.(*wire.StepReply)
		if !r.Done {
			continue
		}
		if r.Place.Epoch != m.epoch {
			return wire.ErrRolledBack
		}
		m.session.Adopt(r.Place.Epoch)
		m.steps.Generation = r.Place.Generation
		m.step = max(r.Place.Step, r.Place.Round) + 1
		m.watch()
		return nil
	}
}

// watch records the cut that waits for this trainer, until the session ends.
func (m *cutter) watch() {
	who := m.who
	c := m.trainer.call(wire.CutWatchRequest{Trainer: who})
	c.wake = func() {
		if c.err != nil || m.who != who {
			return
		}
		if r := c.reply.(*wire.StepReply); r.Done {
			m.wanted = r.Place.Round
			return // boundary watches again after the flush
		}
		m.watch()
	}
}

func (m *cutter) turn() error {
	if err := m.worker.collect(); err != nil {
		return err
	}
	for m.task == nil && m.ready == nil {
		if err := m.boundary(); err != nil {
			return err
		}
		m.send(true)
		if err := m.worker.collect(); err != nil {
			return err
		}
		if m.ready == nil {
			m.p.sleep(m.between(10*time.Millisecond, 100*time.Millisecond))
		}
	}
	if m.task == nil {
		m.task, m.ready = m.ready, nil
		m.nth++
		m.steps.Begin(m.task.Token, m.base)
		m.send(true)
	}
	return m.train()
}

// train trains a mini-batch of the task.
func (m *cutter) train() error {
	h, token := m.habit, m.task.Token
	if h.moving {
		m.moving = []taskqueue.Token{token}
	}
	m.hangs(m.p, token, m.nth)
	k := 1 + m.rng.Int64N(recordsOfTask)
	m.p.sleep(m.between(h.task[0], h.task[1]) * time.Duration(k) / recordsOfTask)
	if reason := m.poisoned(m.p, m.task.Index); reason != "" {
		m.moving = nil
		m.session.Report(taskqueue.Result{Token: token, Error: reason})
		m.task = nil
		return nil
	}
	if err := m.boundary(); err != nil {
		return err
	}
	used := m.steps.Used(token)
	k = min(k, recordsOfTask-used)
	if err := m.push(taskPosition{token.Pass, token.Position}, used, k); err != nil {
		return err
	}
	m.steps.Apply(token, m.step, int(k))
	if used+k == recordsOfTask {
		m.moving = nil
		m.session.Report(taskqueue.Result{Token: token, Step: m.steps.Finish(token)})
		m.task = nil
	}
	return nil
}

// boundary quiesces for a cut that waits for this trainer.
func (m *cutter) boundary() error {
	cut := m.wanted
	if cut == 0 {
		return nil
	}
	for said := false; !said || m.session.Unsaid(); said = true {
		if m.flight == nil && m.session.Unsaid() {
			m.send(false)
		}
		if err := m.worker.collect(); err != nil {
			return err
		}
	}
	request := wire.FlushedRequest{Trainer: m.who, Generation: m.steps.Generation, Step: cut, Positions: m.steps.Positions(cut)}
	for done := false; !done; {
		m.world.instant("flushed", "sent by", m.machine, m.die)
		m.p.sleep(0)
		reply, err := m.call(request).collect(m.p)
		m.world.instant("flushed", "answered to", m.machine, m.die)
		m.p.sleep(0)
		switch {
		case errors.Is(err, wire.ErrOtherStep): // the cut was aborted
			done = true
		case err != nil:
			return err
		case reply.(*wire.StepReply).Done:
			m.steps.Committed(reply.(*wire.StepReply).Place.Step)
			m.step = max(m.step, cut+1)
			done = true
		}
	}
	if m.wanted == cut {
		m.wanted = 0
	}
	m.watch()
	return nil
}

// push pushes records of a task to the servers, and returns after all servers have acknowledged them.
func (m *cutter) push(task taskPosition, first, n int64) error {
	var ids [servers][]int64
	for k := range n {
		record := sample{task, first + k}
		i := m.world.serverOf(record)
		ids[i] = append(ids[i], m.world.idOf(record))
	}
	for i := range ids {
		slices.SortFunc(ids[i], func(a, b int64) int { return cmp.Compare(table.SlotOf(a), table.SlotOf(b)) })
	}
	if m.world.plan.sync {
		return m.inAStep(ids, int(n))
	}
	m.pushes++
	step := m.pushes // a late frame has the step of its time
	for i := range ids {
		if err := m.deliver(i, func(s *server, c *dataConn) error { return s.push(c, step, ids[i]) }); err != nil {
			return err
		}
	}
	return nil
}

// deliver repeats a request, over new connections if necessary, until the server answers it. Without a request, deliver only sends
// the hello.
func (m *cutter) deliver(i int, request func(s *server, c *dataConn) error) error {
	s := m.world.servers[i]
	for {
		err := error(nil)
		if c := m.data[i]; c == nil || c.broken {
			m.data[i] = nil
			err = m.exchange(s, nil, func(reply func(error)) {
				c, err := s.hello(pusher{m.who.Ordinal, m.who.Incarnation}, m.epoch)
				m.data[i] = c
				reply(err)
			})
		}
		if c := m.data[i]; err == nil && c != nil && request != nil {
			err = m.exchange(s, c, func(reply func(error)) { reply(request(s, c)) })
		}
		switch {
		case err == nil && m.data[i] != nil:
			return nil
		case errors.Is(err, errRewound):
			return wire.ErrRolledBack
		case errors.Is(err, errFenced):
			return wire.ErrRejoin
		case errors.Is(err, errLate):
			return err
		}
		m.p.sleep(m.between(10*time.Millisecond, 300*time.Millisecond))
	}
}

// exchange sends a message to a server and waits for the answer. A late frame is dropped if its connection is closed.
func (m *cutter) exchange(s *server, c *dataConn, do func(reply func(error))) error {
	if c != nil && c.broken {
		return errNotThere
	}
	f, life := &m.world.plan.faults, s.run
	faulty := m.now < m.world.plan.quiet
	var err error
	over := false
	m.p.wait(func(wake func()) {
		finish := func(e error) {
			if !over {
				over, err = true, e
				wake()
			}
		}
		if c != nil {
			c.broke = func() { finish(errNotThere) }
		}
		arrive := func() {
			if c != nil && c.closed {
				return
			}
			if !s.up || s.run != life && c != nil {
				m.loop.after(m.world.netDelay(), func() { finish(errNotThere) })
				return
			}
			do(func(e error) { m.loop.after(m.world.netDelay(), func() { finish(e) }) })
		}
		if c != nil && faulty && m.chance(f.breaks) { // the frame is lost, arrives, or arrives after its repetition
			if m.chance(0.5) {
				m.loop.after(m.between(0, 5*time.Second), arrive)
			}
			m.loop.after(m.world.netDelay(), func() { c.broken = true; finish(errNotThere) })
			m.loop.after(m.between(0, 10*time.Second), c.close)
			return
		}
		m.loop.after(m.world.netDelay(), arrive)
	})
	return err
}
