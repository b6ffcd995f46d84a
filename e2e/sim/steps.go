package sim

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/master/netrpc/wire"
	"trainmaster/master/pscontrol"
	"trainmaster/taskqueue"
)

// Histories of synchronous steps. The production code completes the steps and sends them to the servers
// (pscontrol.Control.Steps). The servers of this file hold only a version and the trainers that staged at it. They never
// crash.

// stepServer is a parameter server of a synchronous job.
type stepServer struct {
	version uint64
	staged  map[stager]uint64 // version of the gradients
}

// stager is a trainer's session.
type stager struct {
	ordinal     taskqueue.Ordinal
	incarnation uint64
}

// synchronous selects synchronous steps.
func (p *plan) synchronous(rng interface {
	IntN(int) int
	Float64() float64
}) {
	p.sync, p.backups = true, rng.IntN(3)
	p.options.Speculate = false
	p.patience *= 3
	p.tasks = min(p.tasks, 1+rng.IntN(16))
	for i := range p.habits {
		h := &p.habits[i]
		h.plain, h.moving = false, false // a plain connection is no contributor
		h.task[1] = min(h.task[1], time.Second)
	}
	if rng.IntN(2) == 0 {
		p.faults.between = 0.05 * rng.Float64() * rng.Float64()
	}
}

// miniBatch identifies a mini-batch of a trainer.
type miniBatch struct {
	stager
	nth int
}

// stageBook records the gradients that a trainer staged at a version.
type stageBook struct {
	batch   miniBatch
	records int
}

type stageKey struct {
	stager
	version uint64
}

// stepBook records the steps that etcd stored, and the staged gradients.
type stepBook struct {
	steps   map[uint64]taskqueue.Step
	last    uint64
	terms   map[uint64]int64 // term that committed each version
	resent  int              // number of steps that a server received only from a later term
	stages  map[stageKey]stageBook
	counted map[miniBatch]uint64 // the version with its gradients
}

func newStepBook() *stepBook {
	return &stepBook{steps: map[uint64]taskqueue.Step{}, terms: map[uint64]int64{}, stages: map[stageKey]stageBook{}, counted: map[miniBatch]uint64{}}
}

// stepWritten checks a step that etcd has stored.
func (c *check) stepWritten(req *pb.TxnRequest) {
	for _, op := range req.Success[1:] {
		p := op.GetRequestPut()
		if p == nil || string(p.Key) != taskqueue.StepKey {
			continue
		}
		step, err := taskqueue.DecodeStep(p.Value)
		if err != nil {
			c.breaks("a step can be read", "%v", err)
			return
		}
		c.world.note("step %d of %v", step.Version, step.Contributors)
		b := c.stepBook
		switch {
		case step.Version <= b.last:
			c.breaks("a version is committed once", "version %d after version %d", step.Version, b.last)
		case step.Version != b.last+1 || len(step.Contributors) == 0:
			c.breaks("versions have no gaps", "version %d of %d trainers after version %d", step.Version, len(step.Contributors), b.last)
		}
		for _, by := range step.Contributors {
			who := stager{by.Ordinal, by.Incarnation}
			book, ok := b.stages[stageKey{who, step.Version - 1}]
			was, twice := b.counted[book.batch]
			switch {
			case !ok || book.records != by.Records || by.Records == 0:
				c.breaks("a step has what was staged", "version %d: %+v, staged %+v", step.Version, by, book)
			case twice:
				c.breaks("a contributor counts once", "mini-batch %+v is in versions %d and %d", book.batch, was, step.Version)
			}
			b.counted[book.batch] = step.Version
		}
		b.last = step.Version
		b.steps[step.Version], b.terms[step.Version] = step, c.last
	}
}

// stepSent checks a step that a leader sends to a server.
func (c *check) stepSent(from *node, s *stepServer, step taskqueue.Step) {
	known, ok := c.stepBook.steps[step.Version]
	if !ok || !slices.Equal(known.Contributors, step.Contributors) {
		c.breaks("no effect before its commit", "%s sends version %d of %v, etcd has %v", from.name, step.Version, step.Contributors, known.Contributors)
	}
	if step.Version > s.version && from.lock != nil && from.lock.Revision() != c.stepBook.terms[step.Version] {
		c.stepBook.resent++
	}
	if step.Version != s.version+1 {
		return
	}
	for _, by := range step.Contributors {
		if at, ok := s.staged[stager{by.Ordinal, by.Incarnation}]; !ok || at != s.version {
			c.breaks("servers hold the gradients of a step", "version %d: %+v", step.Version, by)
		}
	}
}

// outcome checks the answer to a trainer about its staged gradients.
func (c *check) outcome(who stager, version, committed uint64, included bool) {
	if committed > c.stepBook.last {
		c.breaks("no effect before its commit", "a trainer receives version %d, etcd has %d", committed, c.stepBook.last)
	}
	truth := slices.ContainsFunc(c.stepBook.steps[version+1].Contributors, func(by taskqueue.Contributor) bool {
		return by.Ordinal == who.ordinal && by.Incarnation == who.incarnation
	})
	if included != truth {
		c.breaks("the outcome of a stage never changes", "trainer %d at version %d: included %v, in the step %v", who.ordinal, version, included, truth)
	}
}

// stepShards calls the servers for a leader. It implements pscontrol.Servers. Messages are late or lost.
type stepShards struct {
	*node
	pscontrol.None // what these servers are never asked
}

func (h stepShards) CommitStep(ctx context.Context, step taskqueue.Step) (err error) {
	p := h.processOf(ctx)
	asks := make([]*ask, len(h.world.stepServers))
	for i, s := range h.world.stepServers {
		h.world.instant("a step", "sent by", h.machine, h.dies)
		p.sleep(0)
		asks[i] = h.send(func() { h.world.commitAt(h.node, s, step) })
	}
	for _, a := range asks {
		for !a.done && !a.failed && ctx.Err() == nil {
			h.await(p, func(func()) {})
		}
		if !a.done {
			err = errors.Join(err, errUnavailable)
		}
	}
	return err
}

// send carries a message to a server, and the answer back. Either may be lost.
func (h stepShards) send(do func()) *ask {
	a := &ask{}
	f, life := &h.world.plan.faults, h.run
	faulty := h.now < h.world.plan.quiet
	lostRequest, lostReply := faulty && h.chance(f.lostRequest/2), faulty && h.chance(f.lostReply/2)
	h.loop.after(h.world.netDelay(), func() {
		if !lostRequest {
			do()
		}
		h.loop.after(h.world.netDelay(), func() {
			a.failed = lostRequest || lostReply
			a.done = !a.failed
			h.stir(life)
		})
	})
	return a
}

// commitAt applies a step at a server. Late and repeated steps change nothing.
func (w *world) commitAt(from *node, s *stepServer, step taskqueue.Step) {
	w.check.stepSent(from, s, step)
	s.version = max(s.version, step.Version)
}

// serveStaged handles the report of a staged gradient.
func (n *node) serveStaged(c *conn, r wire.StagedRequest, reply func(any, error)) {
	c.who = r.Trainer
	ev := &taskqueue.StageGradients{
		By: taskqueue.Contributor{Ordinal: r.Ordinal, Incarnation: r.Incarnation, Records: r.Records}, Version: r.Version, Epoch: r.Epoch,
	}
	n.put(c, ev, func(a taskqueue.Answer, _ uint64, err error) {
		reply(&wire.StagedReply{Committed: a.Version, Included: a.Included}, replyError(a, err))
	})
}

// trainInSteps trains a task in mini-batches, one in each synchronous step.
func (w *worker) trainInSteps(task *taskqueue.Task, nth int) error {
	w.hangs(w.p, task.Token, nth)
	w.moving = []taskqueue.Token{task.Token}
	defer func() { w.moving = nil }()
	for range 1 + w.rng.IntN(3) {
		w.batches++
		if err := w.miniBatch(miniBatch{stager{w.who.Ordinal, w.who.Incarnation}, w.batches}); err != nil {
			return err
		}
	}
	w.session.Finish(task.Token, w.poisoned(w.p, task.Index), 0)
	return nil
}

// maxStagedReports is the number of reports without a step before a trainer leaves. No step waits for a trainer with an expired task.
const maxStagedReports = 3

// miniBatch stages gradients until a step contains them.
func (w *worker) miniBatch(batch miniBatch) error {
	for {
		version := w.pull()
		w.p.sleep(w.between(w.habit.task[0], w.habit.task[1]))
		records := recordsOfTask
		for _, s := range w.world.stepServers {
			w.p.sleep(w.world.netDelay())
			if s.version != version {
				records = 0 // the server refuses them as late
				break
			}
			s.staged[batch.stager] = version
		}
		w.world.check.stepBook.stages[stageKey{batch.stager, version}] = stageBook{batch, records}
		var r *wire.StagedReply
		for asks := 0; r == nil || r.Committed <= version; asks++ {
			if asks == maxStagedReports {
				return errLeaves
			}
			reply, err := w.call(wire.StagedRequest{Trainer: w.who, Version: version, Records: records}).collect(w.p)
			switch {
			case errors.Is(err, wire.ErrRejoin):
				return err
			case err != nil:
				w.world.check.unexpectedError(w.trainer, err)
				w.p.sleep(w.between(50*time.Millisecond, 500*time.Millisecond))
				continue
			}
			if r = reply.(*wire.StagedReply); r.Committed <= version {
				w.p.sleep(w.between(time.Millisecond, 100*time.Millisecond))
			}
		}
		w.world.check.outcome(batch.stager, version, r.Committed, r.Included)
		if r.Included {
			return nil
		}
	}
}

// pull waits until all servers have the same version, and returns it.
func (w *worker) pull() uint64 {
	for {
		var versions []uint64
		for _, s := range w.world.stepServers {
			w.p.sleep(w.world.netDelay())
			versions = append(versions, s.version)
		}
		if slices.MinFunc(versions, cmp.Compare) == slices.MaxFunc(versions, cmp.Compare) {
			return versions[0]
		}
		w.p.sleep(w.between(10*time.Millisecond, 100*time.Millisecond))
	}
}
