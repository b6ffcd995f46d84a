package sim

import (
	"errors"
	"maps"
	"time"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
	"trainmaster/trainer/session"
)

// Histories of explicit commits. The trainers of a generation form a ring that trains one model.
// Each step applies some records of one member's task. The next ring begins from the last
// committed step and discards later steps.

const recordsOfTask = 10 // makeTable creates chunks of this size

// sample is one record of a task in a pass.
type sample struct {
	taskPosition
	record int64
}

// model holds the trained records of one generation.
type model struct {
	step  uint64
	seen  map[sample]int
	round uint64 // step of the save in progress; 0: none
	saved map[uint64]map[sample]int
}

func newModel(step uint64, seen map[sample]int) *model {
	return &model{step: step, seen: maps.Clone(seen), saved: map[uint64]map[sample]int{}}
}

// rings holds all generations and the records of the committed step.
type rings struct {
	models    map[uint64]*model
	committed map[sample]int
	formed    uint64 // newest generation that the rendezvous has formed
}

func newRings() *rings {
	return &rings{models: map[uint64]*model{0: newModel(0, map[sample]int{})}, committed: map[sample]int{}}
}

// member is a trainer in a ring. It models trainer.Client and the user's loop.
type member struct {
	*worker
	steps   *session.Steps
	entered bool
	task    *taskqueue.Task
	nth     int
	flushed uint64
	waited  int // number of consecutive commits that waited for other members
}

// ringPatience is the number of commits, of 10 s each, that wait for a member that hangs without a task. No deadline ends
// its session. The other members then form the next ring, as after a timeout of an all-reduce.
const ringPatience = 6

// inRing trains until the session ends, and returns the cause.
func (w *worker) inRing() error {
	m := &member{worker: w, steps: session.NewSteps()}
	for {
		if err := m.turn(); err != nil {
			switch {
			case errors.Is(err, wire.ErrRolledBack), errors.Is(err, wire.ErrOtherGeneration):
				m.entered = false
			case errors.Is(err, wire.ErrMemberLost):
				if err := m.rollBack(); err != nil {
					return err
				}
			case errors.Is(err, wire.ErrOtherStep): // another member was faster
				m.p.sleep(m.between(10*time.Millisecond, 100*time.Millisecond))
			default:
				return err
			}
		}
		if m.now < m.world.plan.quiet && m.chance(m.habit.leaves/4) {
			return errLeaves
		}
	}
}

var errLeaves = errors.New("leaves")

func (m *member) turn() error {
	if !m.entered {
		return m.enter()
	}
	model := m.world.rings.models[m.steps.Generation]
	switch {
	case m.task == nil:
		if err := m.next(); err != nil {
			return err
		}
	case m.train(model):
	default:
		return nil
	}
	if model.round == 0 && m.chance(0.1) {
		m.begin(model)
	}
	if model.round != 0 {
		return m.save(model)
	}
	return nil
}

// enter requests the step to load, and drops all tasks.
func (m *member) enter() error {
	if err := m.worker.collect(); err != nil && !errors.Is(err, wire.ErrRolledBack) {
		return err
	}
	place, err := m.ask(wire.LastStepRequest{Trainer: m.who})
	if err != nil {
		return err
	}
	m.session.Adopt(place.Epoch)
	m.steps.Drop()
	m.steps.Generation = place.Generation
	m.ready, m.task, m.moving, m.flushed, m.entered = nil, nil, nil, 0, true
	m.note("%s: enters generation %d, epoch %d, step %d", m.name, place.Generation, place.Epoch, place.Step)
	return nil
}

func (m *member) ask(request any) (taskqueue.StepPlace, error) {
	reply, err := m.call(request).collect(m.p)
	if err != nil {
		return taskqueue.StepPlace{}, err
	}
	return reply.(*wire.StepReply).Place, nil
}

// next requests a task. If the answer demands a commit or a rollback, next begins that instead.
func (m *member) next() error {
	if err := m.worker.collect(); err != nil {
		return err
	}
	if m.ready == nil {
		m.send(true)
		if err := m.worker.collect(); err != nil {
			return err
		}
	}
	model := m.world.rings.models[m.steps.Generation]
	switch {
	case m.ready != nil:
		m.task, m.ready = m.ready, nil
		m.nth++
		m.steps.Begin(m.task.Token, m.base)
		m.send(true)
	case m.waits == taskqueue.WaitCommit && model.round == 0:
		m.begin(model)
	case m.waits == taskqueue.WaitRollback:
		return m.rollBack()
	default:
		m.p.sleep(m.between(50*time.Millisecond, 300*time.Millisecond))
	}
	return nil
}

// train makes one step with records of the task. It returns false if the trainer failed the task.
func (m *member) train(model *model) bool {
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
		return false
	}
	used := m.steps.Used(token)
	k = min(k, recordsOfTask-used)
	model.step++
	for n := range k {
		model.seen[sample{taskPosition{token.Pass, token.Position}, used + n}]++
	}
	m.steps.Apply(token, model.step, int(k))
	if used+k == recordsOfTask {
		m.moving = nil
		m.session.Report(taskqueue.Result{Token: token, Step: m.steps.Finish(token)})
		m.task = nil
	}
	return true
}

// begin begins to save the current step.
func (m *member) begin(model *model) {
	if model.saved[model.step] == nil && model.step > 0 {
		model.round = model.step
		model.saved[model.step] = maps.Clone(model.seen)
	}
}

// save flushes the step of the save, and in some cases commits it.
func (m *member) save(model *model) error {
	step, generation := model.round, m.steps.Generation
	if m.flushed < step {
		for first := true; first || m.session.Unsaid(); first = false {
			if m.flight == nil && m.session.Unsaid() {
				m.send(false)
			}
			if err := m.worker.collect(); err != nil {
				return err
			}
		}
		_, err := m.ask(wire.FlushedRequest{Trainer: m.who, Generation: generation, Step: step, Positions: m.steps.Positions(step)})
		if err != nil {
			return err
		}
		m.flushed = step
	}
	if m.task != nil && m.chance(0.5) {
		return nil // another member may commit it
	}
	reply, err := m.call(wire.StepRequest{Trainer: m.who, Generation: generation, Step: step}).collect(m.p)
	if err != nil {
		return err
	}
	if !reply.(*wire.StepReply).Done {
		if m.waited++; m.waited < ringPatience {
			return nil
		}
		m.waited = 0
		return m.rollBack()
	}
	m.waited = 0
	if model.round == step {
		model.round = 0
	}
	m.steps.Committed(step)
	m.world.check.acknowledged(generation, step)
	return nil
}

// rollBack rolls back to the committed step and forms the next ring.
func (m *member) rollBack() error {
	if err := m.worker.collect(); err != nil && !errors.Is(err, wire.ErrRolledBack) {
		return err
	}
	m.entered = false
	place, err := m.ask(wire.LastStepRequest{Trainer: m.who})
	if err != nil {
		return err
	}
	rings := m.world.rings
	rings.formed = max(rings.formed, place.Generation) + 1 + m.rng.Uint64N(2)
	_, err = m.ask(rollbackRequest{wire.StepRequest{Trainer: m.who, Generation: rings.formed, Step: place.Step}})
	return err
}

// rollbackRequest is a StepRequest of the method Rollback.
type rollbackRequest struct{ wire.StepRequest }

// serveSteps handles a request of explicit commits.
func (n *node) serveSteps(c *conn, request any, reply func(any, error)) {
	var who wire.Trainer
	var ev taskqueue.Event
	switch r := request.(type) {
	case wire.LastStepRequest:
		who, ev = r.Trainer, &taskqueue.LastStep{Trainer: r.Ordinal, Incarnation: r.Incarnation, Epoch: r.Epoch}
	case wire.CutWatchRequest:
		who, ev = r.Trainer, &taskqueue.CutWatch{Trainer: r.Ordinal, Incarnation: r.Incarnation}
	case wire.FlushedRequest:
		n.world.instant("flushed", "at", n.machine, n.dies)
		who, ev = r.Trainer, &taskqueue.StepFlushed{Trainer: r.Ordinal, Incarnation: r.Incarnation, Generation: r.Generation, Step: r.Step, Positions: r.Positions}
	case wire.StepRequest:
		who, ev = r.Trainer, &taskqueue.StepCommit{Trainer: r.Ordinal, Incarnation: r.Incarnation, Generation: r.Generation, Step: r.Step}
	case rollbackRequest:
		who, ev = r.Trainer, &taskqueue.Rollback{Trainer: r.Ordinal, Incarnation: r.Incarnation, Generation: r.Generation, Step: r.Step}
	}
	c.who = who
	n.put(c, ev, func(a taskqueue.Answer, _ uint64, err error) {
		reply(&wire.StepReply{Place: a.Place, Done: a.Kind == taskqueue.AnswerStep}, replyError(a, err))
	})
}
