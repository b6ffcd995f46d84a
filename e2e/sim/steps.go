package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/master/netrpc/wire"
	"trainmaster/pserver/table"
	"trainmaster/taskqueue"
)

// Histories of synchronous steps, with the cuts and rollbacks of cuts.go. The production code completes the steps and sends them
// to the servers (pscontrol.Control). A trainer stages the records of a mini-batch at all servers, and a step counts them
// in the rows.

// gradients are the staged records of a trainer at a server.
type gradients struct {
	version  uint64
	sequence uint64 // of their frame
	ids      []int64
}

// stager is a trainer's session.
type stager struct {
	ordinal     taskqueue.Ordinal
	incarnation uint64
}

// synchronous selects synchronous steps.
func (p *plan) synchronous(rng *rand.Rand) {
	p.takeCuts(rng)
	p.sync, p.backups = true, rng.IntN(3)
	for i := range p.habits {
		h := &p.habits[i]
		h.moving = false
		h.task[1] = min(h.task[1], time.Second)
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

// stepName identifies a version in a job epoch.
type stepName struct {
	epoch   uint32
	version uint64
}

type stageKey struct {
	stager
	stepName
}

// stepBook records the steps that etcd stored, and the staged gradients.
type stepBook struct {
	steps     map[stepName]taskqueue.Step
	last      stepName
	terms     map[stepName]int64 // term that committed each step
	resent    int                // number of steps that a server received only from a later term
	rollbacks int                // number of rollbacks that discarded a step
	stages    map[stageKey]stageBook
	counted   map[miniBatch]stepName // the step with its gradients
}

func newStepBook() *stepBook {
	return &stepBook{
		last: stepName{1, 0}, steps: map[stepName]taskqueue.Step{}, terms: map[stepName]int64{}, stages: map[stageKey]stageBook{}, counted: map[miniBatch]stepName{},
	}
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
		c.world.note("step %d of %v in epoch %d", step.Version, step.Contributors, step.Epoch)
		b, name := c.stepBook, stepName{step.Epoch, step.Version}
		if len(step.Contributors) == 0 {
			c.stepsRolledBack(name)
		} else if name != (stepName{b.last.epoch, b.last.version + 1}) {
			c.breaks("versions have no gaps", "%+v after %+v", name, b.last)
		}
		for _, by := range step.Contributors {
			who := stager{by.Ordinal, by.Incarnation}
			book, ok := b.stages[stageKey{who, b.last}]
			was, twice := b.counted[book.batch]
			switch {
			case !ok || book.records != by.Records || by.Records == 0:
				c.breaks("a step has what was staged", "version %d: %+v, staged %+v", step.Version, by, book)
			case twice:
				c.breaks("a contributor counts once", "mini-batch %+v is in %+v and %+v", book.batch, was, name)
			}
			b.counted[book.batch] = name
		}
		b.last = name
		b.steps[name], b.terms[name] = step, c.last
	}
}

// stepsRolledBack checks that a rollback continues from the version of the named set.
func (c *check) stepsRolledBack(to stepName) {
	b, version := c.stepBook, uint64(0)
	if set := c.world.latestSet(); set != nil {
		version = set.Version
	}
	if to.epoch <= b.last.epoch || to.version != version {
		c.breaks("a rollback continues from the set", "%+v after %+v, the set has version %d", to, b.last, version)
	}
	if b.last.version > version {
		b.rollbacks++
	}
	maps.DeleteFunc(b.counted, func(_ miniBatch, name stepName) bool { return name.version > version })
}

// stepSent checks a step that a leader sends to a server.
func (c *check) stepSent(from *node, s *server, step taskqueue.Step) {
	name := stepName{step.Epoch, step.Version}
	known, ok := c.stepBook.steps[name]
	if !ok || !slices.Equal(known.Contributors, step.Contributors) {
		c.breaks("no effect before its commit", "%s sends %+v of %v, etcd has %v", from.name, name, step.Contributors, known.Contributors)
	}
	if step.Epoch == s.epoch && step.Version > s.version && from.lock != nil && from.lock.Revision() != c.stepBook.terms[name] {
		c.stepBook.resent++
	}
}

// outcome checks the answer to a trainer about its staged gradients.
func (c *check) outcome(who stager, at stepName, committed uint64, included bool) {
	if at.epoch == c.stepBook.last.epoch && committed > c.stepBook.last.version {
		c.breaks("no effect before its commit", "a trainer receives version %d, etcd has %d", committed, c.stepBook.last.version)
	}
	truth := slices.ContainsFunc(c.stepBook.steps[stepName{at.epoch, at.version + 1}].Contributors, func(by taskqueue.Contributor) bool {
		return by.Ordinal == who.ordinal && by.Incarnation == who.incarnation
	})
	if included != truth {
		c.breaks("the outcome of a stage never changes", "trainer %d at %+v: included %v, in the step %v", who.ordinal, at, included, truth)
	}
}

var (
	errLate     = errors.New("gradients of an earlier version")
	errEarly    = errors.New("gradients of a later version")
	errNotAt    = errors.New("step of another epoch, or after a gap")
	errNoStages = errors.New("gradients of the step are missing")
)

// stage keeps the records of a mini-batch until a step names them.
func (s *server) stage(c *dataConn, version, sequence uint64, ids []int64) error {
	switch g := s.staged[c.who]; {
	case s.trainers[c.who] == nil:
		return errFenced
	case version < s.version:
		return errLate
	case version > s.version:
		return errEarly
	case g != nil && g.version == version && g.sequence > sequence: // a late frame
		return nil
	}
	if err := s.table.Check(rowsOf(ids)); err != nil {
		s.breaks("a stage fits", "%v", err)
	}
	s.staged[c.who] = &gradients{version, sequence, ids}
	return nil
}

// commit applies a step. Late and repeated steps change nothing.
func (s *server) commit(from *node, step taskqueue.Step) error {
	s.world.check.stepSent(from, s, step)
	switch {
	case step.Epoch != s.epoch || step.Version > s.version+1:
		return fmt.Errorf("%w: %d in epoch %d, at %d in epoch %d", errNotAt, step.Version, step.Epoch, s.version, s.epoch)
	case step.Version <= s.version:
		return nil
	}
	shares := [table.Slots][]table.Share{}
	for _, by := range step.Contributors {
		g := s.staged[pusher{by.Ordinal, by.Incarnation}]
		if g == nil || g.version != s.version {
			if s.rolledBack == step.Epoch {
				s.breaks("servers hold the gradients of a step", "version %d: %+v", step.Version, by)
			}
			return errNoStages // it was restarted, and waits for its rollback
		}
		rows, k := rowsOf(g.ids), 0
		for _, span := range rows.Spans {
			n := k + int(span.Rows)
			shares[span.Slot] = append(shares[span.Slot], table.Share{IDs: rows.IDs[k:n], Grads: rows.Values[k:n]})
			k = n
		}
	}
	for slot, of := range shares {
		if len(of) > 0 {
			s.table.Commit(uint32(slot), of, 1, table.Step{Number: step.Version, Scale: 1})
		}
	}
	s.version = step.Version
	maps.DeleteFunc(s.staged, func(_ pusher, g *gradients) bool { return g.version < s.version })
	return nil
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

// inAStep stages records until a step contains them.
func (m *cutter) inAStep(ids [servers][]int64, records int) error {
	m.batches++
	batch := miniBatch{stager{m.who.Ordinal, m.who.Incarnation}, m.batches}
	for {
		version, err := m.pull()
		if err != nil {
			return err
		}
		at := stepName{m.epoch, version}
		staged, err := m.stage(at.version, ids, records)
		if err != nil {
			return err
		}
		m.world.check.stepBook.stages[stageKey{batch.stager, at}] = stageBook{batch, staged}
		included, err := m.awaitStep(batch.stager, at, staged)
		if included || err != nil {
			return err
		}
	}
}

// pull waits until all servers have the same version, no earlier than the last version of the trainer, and returns it.
func (m *cutter) pull() (uint64, error) {
	for {
		versions := make([]uint64, servers)
		for i := range versions {
			if err := m.deliver(i, func(s *server, _ *dataConn) error { versions[i] = s.version; return nil }); err != nil {
				return 0, err
			}
		}
		if slices.Min(versions) == slices.Max(versions) && versions[0] >= m.committed {
			return versions[0], nil
		}
		m.p.sleep(m.between(10*time.Millisecond, 100*time.Millisecond))
	}
}

// stage stages the records at all servers, and returns their number, or 0 if a server has a later version.
func (m *cutter) stage(version uint64, ids [servers][]int64, records int) (staged int, err error) {
	m.pushes++
	sequence := m.pushes // a late frame has the sequence of its time
	for i := range ids {
		err := m.deliver(i, func(s *server, c *dataConn) error { return s.stage(c, version, sequence, ids[i]) })
		if errors.Is(err, errLate) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return records, nil
}

// awaitStep reports staged records until the step after their version is committed, and flushes the cuts that begin during the wait.
func (m *cutter) awaitStep(who stager, at stepName, records int) (included bool, err error) {
	for {
		cut := m.wanted // no step completes during a cut: an answer to a later report holds until the flush
		reply, err := m.call(wire.StagedRequest{Trainer: m.who, Version: at.version, Records: records, Epoch: m.epoch}).collect(m.p)
		if err != nil {
			return false, err
		}
		r := reply.(*wire.StagedReply)
		if r.Committed > at.version {
			m.world.check.outcome(who, at, r.Committed, r.Included)
			m.committed = r.Committed
			return r.Included, nil
		}
		if cut != 0 {
			err = m.boundary()
		}
		if err != nil {
			return false, err
		}
		m.p.sleep(m.between(time.Millisecond, 100*time.Millisecond))
	}
}
