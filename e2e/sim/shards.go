package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/master/pscontrol"
	"trainmaster/pserver/checkpoint"
	"trainmaster/taskqueue"
)

// shards calls the servers for a leader. It implements pscontrol.Servers. Messages are lost or late, and a process may
// die between any two of them.
type shards struct {
	*node
	pscontrol.None // what these servers are never asked
}

// ask is a call of a server.
type ask struct {
	done, failed bool
	err          error
}

var errUnavailable = errors.New("server does not answer")

// all calls every server of a list and waits for all answers.
func (h *shards) all(ctx context.Context, what string, to []*server, call func(i int, s *server, reply func(error))) error {
	asks, p := make([]*ask, len(to)), h.processOf(ctx)
	for i, s := range to {
		h.world.instant(what, "sent by", h.machine, h.dies)
		p.sleep(0)
		asks[i] = h.ask(what, s, func(reply func(error)) { call(i, s, reply) })
	}
	var errs []error
	for i, a := range asks {
		for !a.done && !a.failed && ctx.Err() == nil {
			h.await(p, func(func()) {})
		}
		if !a.done {
			a.err = errUnavailable
		}
		if a.err != nil {
			errs = append(errs, fmt.Errorf("%s server %d: %w", what, to[i].index, a.err))
		}
	}
	return errors.Join(errs...)
}

// ask sends a message. The answer may be lost.
func (h *shards) ask(what string, s *server, do func(reply func(error))) *ask {
	a := &ask{}
	f, life := &h.world.plan.faults, h.run
	lost := h.now < h.world.plan.quiet && h.chance(f.lostReply/2)
	h.world.after(h.world.netDelay(), func() {
		if !s.up {
			h.world.after(h.world.netDelay(), func() { a.failed = true; h.stir(life) })
			return
		}
		s.asked[a] = true
		h.world.instant(what, "at", s.machine, s.die)
		s.after(0, func() {
			queued := s.control
			if what == commitStep {
				queued = func(do func(done func())) { do(func() {}) }
			}
			queued(func(done func()) {
				do(func(err error) {
					done()
					h.world.instant(what, "done by", s.machine, s.die)
					s.after(0, func() {
						delete(s.asked, a)
						h.world.after(h.world.netDelay(), func() {
							if lost {
								a.failed = true
							} else if !a.failed {
								a.done, a.err = true, err
							}
							h.stir(life)
						})
					})
				})
			})
		})
	})
	return a
}

// serversChanged notifies leaders of a server that registers. A leader partitioned from etcd is not notified.
func (w *world) serversChanged() {
	for _, n := range w.nodes {
		if d := n.driven; d != nil && !n.cut {
			n.after(w.watchDelay(), func() {
				if n.driven == d {
					leaderTerm{d, n}.Post(component.ServersChanged{})
				}
			})
		}
	}
}

// wakeLeaders wakes the components of all masters, which then find that a server has crashed.
func (w *world) wakeLeaders() {
	for _, n := range w.nodes {
		n.stir(n.run)
	}
}

func (h *shards) CommitStep(ctx context.Context, step taskqueue.Step) error {
	return h.all(ctx, commitStep, h.world.servers, func(_ int, s *server, reply func(error)) { reply(s.commit(h.node, step)) })
}

// commitStep is the call that does not wait for the requests before it.
const commitStep = "commit step"

func (h *shards) States(ctx context.Context) ([]pscontrol.ServerState, error) {
	states := make([]pscontrol.ServerState, servers)
	if slices.ContainsFunc(h.world.servers, func(s *server) bool { return !s.registered() }) {
		return states, nil
	}
	err := h.all(ctx, "describe", h.world.servers, func(i int, s *server, reply func(error)) {
		states[i] = pscontrol.ServerState{Present: true, Ready: s.ready, Epoch: s.rolledBack, LastCut: s.lastCut, KeepsCheckpoints: true, LearningRate: h.world.plan.ownRate(s.ready)}
		reply(nil)
	})
	return states, err
}

func (h *shards) Rollback(ctx context.Context, term uint64, epoch uint32, set, _ []byte) error {
	return h.all(ctx, "rewind", h.world.servers, func(_ int, s *server, reply func(error)) { reply(s.rewind(term, epoch, set)) })
}

func (h *shards) SetAt(set []byte) (pscontrol.SetAt, error) {
	s, err := checkpoint.ParseSet(set)
	if err != nil {
		return pscontrol.SetAt{}, err
	}
	at := pscontrol.SetAt{Number: s.Number, Version: s.Version, Position: &pscontrol.Position{}}
	return at, json.Unmarshal(s.Position, at.Position)
}

func (h *shards) Discard(ctx context.Context, term uint64, latest []byte) error {
	var at pscontrol.SetAt
	if latest != nil {
		var err error
		if at, err = h.SetAt(latest); err != nil {
			return err
		}
	}
	return h.all(ctx, "discard", h.world.servers, func(_ int, s *server, reply func(error)) { reply(s.discard(at.Number, term)) })
}

func (h *shards) Begin(ctx context.Context, of pscontrol.CutRequest) (pscontrol.Cut, error) {
	c := &leaderCut{h, of.Number(0), of.Term, of.Epoch, 0}
	versions := make([]uint64, servers)
	err := h.all(ctx, "begin", h.world.servers, func(i int, s *server, reply func(error)) {
		err := s.beginCut(c.number, c.term, c.epoch)
		versions[i] = s.version
		reply(err)
	})
	if c.version = versions[0]; err == nil && slices.Max(versions) != slices.Min(versions) {
		err = fmt.Errorf("cut %d: servers at versions %d", c.number, versions)
	}
	if err != nil {
		return nil, errors.Join(err, c.Abort(ctx))
	}
	return c, nil
}

// leaderCut is a cut of all servers.
type leaderCut struct {
	shards  *shards
	number  uint64
	term    uint64
	epoch   uint32
	version uint64
}

func (c *leaderCut) Number() uint64 { return c.number }

func (c *leaderCut) Write(ctx context.Context, about pscontrol.About) ([]byte, error) {
	all := c.shards.world.servers
	set := &checkpoint.Set{Job: about.Job, JobID: about.JobID, Number: c.number, Mode: checkpoint.Async, Version: c.version, JobEpoch: c.epoch, Position: about.Position, Shards: make([]checkpoint.Part, servers)}
	if err := c.shards.all(ctx, "write", all, func(i int, s *server, reply func(error)) {
		s.writeCut(c.number, c.term, func(part checkpoint.Part, err error) {
			set.Shards[i] = part
			reply(err)
		})
	}); err != nil {
		return nil, err
	}
	text, err := set.Encode()
	if err != nil {
		return nil, err
	}
	return text, c.shards.all(ctx, "write the set", all[:1], func(_ int, s *server, reply func(error)) { reply(s.writeSet(c.number, c.term, text)) })
}

func (c *leaderCut) Abort(ctx context.Context) error {
	return c.shards.all(ctx, "abort", c.shards.world.servers, func(_ int, s *server, reply func(error)) {
		if o := s.open; o != nil && o.number == c.number && o.term == c.term {
			s.dropCut()
		}
		reply(nil)
	})
}

func (c *leaderCut) Prune(ctx context.Context, keep int, _ []uint64) error {
	prune := func(_ int, s *server, reply func(error)) { reply(s.pruneSets(c.number, c.term, keep)) }
	all := c.shards.world.servers
	if err := c.shards.all(ctx, "prune", all[:1], prune); err != nil {
		return err
	}
	return c.shards.all(ctx, "prune", all, prune)
}

// leaderTerm is a term whose effects wake the components immediately.
type leaderTerm struct {
	*committer.Committer
	node *node
}

// Post implements [component.Term].
func (t leaderTerm) Post(e taskqueue.Effect) {
	t.Committer.Post(e)
	t.node.stir(t.node.run)
}

// Wait implements [component.Term].
func (t leaderTerm) Wait(ctx context.Context, ev taskqueue.Event) (taskqueue.Answer, error) {
	a, err := t.Committer.Wait(ctx, ev)
	if _, ok := ev.(*taskqueue.CutBegin); ok {
		t.node.cutBegan = t.node.now
	}
	return a, err
}

// Submit implements [component.Term].
func (t leaderTerm) Submit(ctx context.Context, ev taskqueue.Event) (taskqueue.Answer, error) {
	if fence, ok := ev.(*taskqueue.CutFence); ok {
		t.node.world.check.fences(t.node, fence.Trainers)
	}
	return t.Committer.Submit(ctx, ev)
}

// control runs components of the control of parameter servers until the term ends, each in its own process on the leader's machine.
func (n *node) control(d *committer.Committer, servers pscontrol.Servers, parts func(*pscontrol.Control) []component.Component) {
	ctx, cancel := context.WithCancelCause(context.Background())
	others := n.endControl
	n.endControl = func(cause error) { others(cause); cancel(cause) }
	link := &link{etcd: n.world.etcd, world: n.world, cut: &n.cut, heard: &n.heard, idle: func() {}}
	d.Await(n.awaitAnswer)
	term := leaderTerm{d, n}
	control := pscontrol.New(pscontrol.Config{
		Servers: servers, Store: &store{link: link}, Log: n.world.log, Sync: n.world.plan.sync, Cuts: n.world.plan.cuts,
		Backups: n.world.plan.backups, CheckpointEvery: pscontrol.Cadence{Time: n.world.plan.every},
	})
	for _, part := range parts(control) {
		if err := part.Prepare(ctx, term); err != nil {
			n.world.breaks("components can be prepared", "%s: %s: %v", n.name, part.Name(), err)
		}
		n.runPart(ctx, part, link, term)
	}
}

// runPart runs a component in its own process until ctx ends. The last component of a link reads the store.
func (n *node) runPart(ctx context.Context, part component.Component, link *link, term component.Term) {
	n.beside(func(p *process) {
		link.process = p
		n.components = append(n.components, p)
		err := part.Run(context.WithValue(ctx, sleeper{}, p), term)
		n.components = slices.DeleteFunc(n.components, func(other *process) bool { return other == p })
		n.note("%s: %s stopped: %v", n.name, part.Name(), err)
		if ctx.Err() == nil {
			n.world.breaks("only the end of a term ends its components", "%s: %s: %v", n.name, part.Name(), err)
		}
	})
}

// awaitAnswer blocks the process of a component until its request is answered.
func (n *node) awaitAnswer(ctx context.Context, done <-chan struct{}) {
	p := n.processOf(ctx)
	n.world.instant("a request", "sent by", n.machine, n.dies)
	p.sleep(0)
	n.arrived++
	if n.wake != nil {
		n.wake()
	}
	n.Wait(context.WithoutCancel(ctx), done, -1)
	n.world.instant("a request", "answered to", n.machine, n.dies)
	p.sleep(0)
}

// WithTimeout is context.WithTimeout on this machine.
func (n *node) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithCancelCause(ctx)
	n.after(d, func() {
		if bounded.Err() == nil {
			cancel(context.DeadlineExceeded)
			n.stir(n.run)
		}
	})
	return bounded, func() { cancel(context.Canceled) }
}

// instant is a crash point between two messages of a cut or a rollback: the process may die.
func (w *world) instant(what, where string, m *machine, die func()) {
	w.instants++
	if w.instants == w.strike && w.struck != nil {
		w.note("%s %s %s: last message before a fault", what, where, m.name)
		w.loop.after(0, func() { w.struck(m, die) })
		return
	}
	if w.instants == w.strike || w.instants == w.again || w.now < w.plan.quiet && w.chance(w.plan.faults.between) {
		w.note("%s %s %s: last message before its crash", what, where, m.name)
		w.loop.after(0, die)
	}
}
