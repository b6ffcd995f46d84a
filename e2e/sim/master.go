package sim

import (
	"context"
	"errors"
	"fmt"
	"net/rpc"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/etcdstore/fence"
	"trainmaster/master"
	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/master/election/detector"
	"trainmaster/master/netrpc/wire"
	"trainmaster/master/pscontrol"
	ports "trainmaster/master/store"
	"trainmaster/taskqueue"
)

// node is a master: it drives a term as the leader, or watches the leader as a standby.
type node struct {
	*machine
	world *world
	addr  string
	cut   bool          // from etcd
	deaf  bool          // no heartbeats from and to other masters
	heard time.Duration // time of the last answer of etcd
	jump  time.Duration // offset of its clock

	cutBegan time.Duration // when trainers could receive the last cut
	proc     *process
	link     *link

	away     time.Duration // sum of its pauses
	driven   *committer.Committer
	stopTerm context.CancelFunc

	components []*process // components of terms except the committer; they may end after their term
	endControl context.CancelCauseFunc
	lock       *lock
	pending    []*pendingEvent
	arrived    int
	wake       func()
	stopping   bool
	conns      []*conn

	bid       *lock  // key in the queue for the lock; nil on the leader
	own       string // lease of the last key in the queue
	version   int64  // newest revision of the stored state that the watch reported
	watching  detector.Watch
	excused   time.Duration // until then, a takeover after a fault is no violation
	listening *listening
	listeners []func() // functions that end the connections of standbys
}

// pendingEvent is the event of a caller that has no answer yet.
type pendingEvent struct {
	*committer.Pending
	term  int64
	ctx   context.Context // ends with the connection
	event taskqueue.Event
	at    time.Duration
	since waiting
	reply func(taskqueue.Answer, uint64, error)
}

// answerWithin is the time within which a caller of a master receives an answer, or the term
// ends, regardless of faults. It covers the long poll and two commits: the commit in progress and
// the commit of the request. Each commit has its time limit and a read-back within the time to
// live of the lease.
const answerWithin = 60 * time.Second

// waiting is a time on the clock of a master. The clock stops during pauses.
type waiting struct{ at, away time.Duration }

func (n *node) waiting() waiting { return waiting{n.now, n.away} }

func (n *node) waited(w waiting) time.Duration { return n.now - w.at - (n.away - w.away) }

// pauses pauses the machine for d.
func (n *node) pauses(d time.Duration) {
	until := max(n.paused, n.now+d)
	n.away += until - max(n.paused, n.now)
	n.paused = until
	n.excuse(until - n.now)
}

func (n *node) Now() time.Time { return time.Unix(0, 0).Add(n.now + n.jump) }

// processOf returns the process that ctx names: a component of the term, or the term itself.
func (n *node) processOf(ctx context.Context) *process {
	if p, ok := ctx.Value(sleeper{}).(*process); ok {
		return p
	}
	return n.proc
}

// Sleep implements master.Time.
func (n *node) Sleep(ctx context.Context, d time.Duration) { n.processOf(ctx).sleep(d) }

// Wait implements master.Time. Each round of the term wakes the components.
func (n *node) Wait(ctx context.Context, wake <-chan struct{}, d time.Duration) {
	p, until := n.processOf(ctx), n.now+d
	for ctx.Err() == nil && (d < 0 || n.now < until) {
		select {
		case <-wake:
			return
		default:
		}
		n.await(p, func(again func()) {
			if d >= 0 {
				n.after(until-n.now, again)
			}
		})
	}
}

// await blocks the process of a component until stir or again is called.
func (n *node) await(p *process, arm func(again func())) {
	p.wait(func(wake func()) {
		p.stir = wake
		arm(wake)
	})
}

// stir makes the components of a process check their conditions again.
func (n *node) stir(life int) {
	if n.run != life {
		return
	}
	for _, p := range n.components {
		if p.stir != nil {
			p.stir()
		}
	}
}

// sleeper is the context key of the process that a call belongs to.
type sleeper struct{}

// boot starts the process of a master.
func (n *node) boot() {
	if n.up {
		return
	}
	n.driven, n.lock, n.bid, n.pending, n.conns, n.wake, n.stopping, n.arrived = nil, nil, nil, nil, nil, nil, false, 0
	n.stopTerm = func() {}
	n.components = nil
	n.own, n.watching, n.listeners = "", detector.Watch{Address: n.addr}, nil
	if n.listening != nil {
		n.listening.over = true
		n.listening = nil
	}
	n.start(func(p *process) {
		n.proc = p
		n.link = &link{process: p, etcd: n.world.etcd, world: n.world, cut: &n.cut, heard: &n.heard, idle: n.flush}
		n.heard = n.now
		n.watch()
		n.checkCallers()
		for !n.stopping {
			k := n.campaign()
			if k == nil {
				break
			}
			err := n.lead(k)
			n.termOver(err)
			_ = k.Resign(context.Background())
			p.sleep(200 * time.Millisecond)
		}
		n.up = false
		n.closeListeners()
	})
}

// checkCallers checks every second that no caller waits longer than answerWithin.
func (n *node) checkCallers() {
	for _, e := range n.pending {
		if waited := n.waited(e.since); waited > answerWithin {
			n.breaks("a caller is answered while something fails", "%s: %T of term %d waits for %v", n.name, e.event, e.term, waited)
		}
	}
	n.after(time.Second, n.checkCallers)
}

// campaign queues for the lock and waits for it.
func (n *node) campaign() *lock {
	for !n.stopping {
		sent := n.now
		var id int64
		if _, err := n.link.call(func() (a answer, err error) { id, err = n.world.etcd.offer(leaseTTL); return a, err }); err != nil {
			n.proc.sleep(n.between(50*time.Millisecond, time.Second))
			continue
		}
		n.own = leaseName(id)
		k := &lock{link: n.link, lost: make(chan struct{}), trusted: sent + leaseTTL - leaseMargin}
		k.term = fence.Term{LockKey: fmt.Sprintf("%s%x", lockPrefix, id), Lease: id}
		a, err := n.link.txn(&pb.TxnRequest{
			Compare: []*pb.Compare{fence.CreatedAt(k.term.LockKey, 0)},
			Success: []*pb.RequestOp{fence.Put(k.term.LockKey, []byte(n.addr), id)},
		})
		if err != nil || !a.ok {
			n.proc.sleep(n.between(50*time.Millisecond, time.Second)) // the lease expires
			continue
		}
		k.term.Revision = a.revision
		k.guard()
		n.bid = k
		n.follow(n.first())
		if n.queue(k) {
			n.bid = nil
			return k
		}
		n.bid = nil
	}
	return nil
}

// queue waits until the key is the first in the queue. It returns false if the key is deleted.
func (n *node) queue(k *lock) bool {
	for !k.gone && !n.stopping {
		mine, first := false, false
		_, err := n.link.read(func() answer {
			kv := n.world.etcd.keys[k.term.LockKey]
			mine = kv.GetCreateRevision() == k.term.Revision
			first = string(n.world.etcd.first(lockPrefix).GetKey()) == k.term.LockKey
			return answer{}
		})
		switch {
		case err != nil:
		case !mine:
			k.lose("key deleted")
		case first && !k.gone:
			return true
		default:
			n.proc.wait(func(wake func()) {
				n.wake, k.wake = wake, wake
				n.after(time.Second, wake)
			})
		}
	}
	return false
}

// lead recovers and serves until the term ends.
func (n *node) lead(k *lock) error {
	ctx := context.Background()
	running, stop := context.WithCancel(ctx)
	defer stop()
	n.stopTerm = stop
	if n.stopping {
		stop()
	}
	config := n.world.config
	config.Store, config.Clock, config.Log = &store{link: n.link}, n, n.world.log
	d, err := committer.Recover(running, k, config.Committer(), nil, func() {}, func() {})
	n.world.check.recovers(n, k, err)
	if err != nil {
		return err
	}
	if err := k.Announce(ctx, n.addr, uint64(k.Revision())); err != nil {
		return err
	}
	n.note("%s: leads in term %d", n.name, k.Revision())
	n.driven, n.lock, n.endControl = d, k, func(error) {}
	n.reportDataset(d)
	if n.world.plan.cuts {
		n.control(d, &shards{node: n}, func(c *pscontrol.Control) (parts []component.Component) {
			if n.world.plan.sync {
				parts = append(parts, c.Steps())
				if n.world.plan.strategy != nil {
					parts = append(parts, c.OwnRate())
				}
			}
			return append(parts, c.Checkpoints()...)
		})
	}
	if n.world.heldOut != nil {
		if err := n.evaluate(d); err != nil {
			return err
		}
	}
	if n.world.plan.segments != nil {
		n.grow(d)
	}
	if n.world.plan.sealing.Every > 0 {
		n.seal(d, k)
	}
	for tick := n.now + n.world.plan.tick; ; {
		switch {
		case k.gone:
			return taskqueue.ErrFenced
		case n.stopping:
			return errors.Join(d.Round(ctx, false), errStopped)
		case n.arrived == 0 && n.now < tick:
			n.waitFor(k, tick-n.now)
			continue
		}
		if target, rest := d.Linger(); target > n.arrived && rest > 0 {
			n.waitFor(k, rest)
		}
		due := n.now >= tick
		if due {
			tick = n.now + n.world.plan.tick
		}
		n.arrived = 0
		commits, began := n.world.check.commits, n.now
		if err := d.Round(ctx, due); err != nil {
			return err
		}
		if due {
			n.world.check.ticked(k, began)
		}
		n.world.check.untrusted = commits == n.world.check.commits && !k.Valid()
		n.flush()
		n.world.check.untrusted = false
	}
}

// reportDataset reports the dataset, as each trainer does at its start, until the report succeeds.
func (n *node) reportDataset(to *committer.Committer) {
	n.put(nil, n.world.report, func(_ taskqueue.Answer, _ uint64, err error) {
		if err != nil && n.driven == to {
			n.after(500*time.Millisecond, func() {
				if n.driven == to {
					n.reportDataset(to)
				}
			})
		}
	})
}

var errStopped = errors.New("the master is stopping")

func (n *node) waitFor(k *lock, d time.Duration) {
	n.proc.wait(func(wake func()) {
		n.wake, k.wake = wake, wake
		n.after(d, wake)
	})
}

// put passes an event to the term.
func (n *node) put(c *conn, ev taskqueue.Event, reply func(taskqueue.Answer, uint64, error)) {
	if n.driven == nil {
		if reply != nil {
			reply(taskqueue.Answer{}, 0, master.ErrNotLeader)
		}
		return
	}
	ctx := context.Background()
	if c != nil {
		ctx = c.ctx
	}
	e, err := n.driven.Put(ctx, ev)
	if err != nil {
		if reply != nil {
			reply(taskqueue.Answer{}, 0, err)
		}
		return
	}
	n.world.check.receives(ctx, n, ev)
	n.enqueue(&pendingEvent{e, n.lock.term.Revision, ctx, ev, n.now, n.waiting(), reply})
}

func (n *node) enqueue(e *pendingEvent) {
	n.pending = append(n.pending, e)
	n.arrived++
	if n.wake != nil {
		n.wake()
	}
}

// flush sends the available answers.
func (n *node) flush() {
	var over []func() // called after the loop, because an answered caller may put another event
	n.pending = slices.DeleteFunc(n.pending, func(e *pendingEvent) bool {
		a, commit, done, err := e.Answer()
		if done {
			over = append(over, func() {
				n.world.check.answers(e, a, err)
				if e.reply != nil {
					e.reply(a, commit, err)
				}
			})
		}
		return done
	})
	for _, answer := range over {
		answer()
	}
	n.stir(n.run)
}

// termOver refuses all callers and closes their connections.
func (n *node) termOver(cause error) {
	n.note("%s: term over: %v", n.name, cause)
	if errors.Is(cause, master.ErrStoreWentBack) {
		n.breaks("no commit is lost", "%s: %v", n.name, cause)
	}
	if n.driven != nil {
		n.driven.End(cause)
		n.endControl(cause)
		n.flush()
	}
	n.driven, n.lock, n.pending = nil, nil, nil
	for _, c := range n.conns {
		c.breaks()
	}
	n.conns = nil
}

// watch watches etcd: the node's key, the queue for the lock, and the state.
func (n *node) watch() {
	life := n.run
	n.world.etcd.changed = append(n.world.etcd.changed, func(key string) {
		if n.run != life || n.cut {
			return
		}
		late := n.world.watchDelay()
		switch {
		case key == fence.StateKey:
			revision := n.world.etcd.revision
			n.after(late, func() { n.version = max(n.version, revision) })
		case len(key) > len(lockPrefix) && key[:len(lockPrefix)] == lockPrefix:
			n.after(late, func() { n.queueChanged() })
		}
	})
	n.queueChanged()
	n.judge()
}

func (n *node) queueChanged() {
	e := n.world.etcd
	for _, k := range []*lock{n.bid, n.lock} {
		if k != nil && e.keys[k.term.LockKey].GetCreateRevision() != k.term.Revision {
			k.lose("key deleted")
		}
	}
	if n.bid != nil && n.wake != nil {
		n.wake()
	}
	if next := n.first(); next != n.watching.Candidate() {
		n.follow(next)
	}
}

// first returns the candidate with the first key in the queue.
func (n *node) first() ports.Candidate {
	if kv := n.world.etcd.first(lockPrefix); kv != nil {
		return ports.Candidate{Key: string(kv.Key), Revision: kv.CreateRevision, Address: string(kv.Value), Lease: leaseName(kv.Lease)}
	}
	return ports.Candidate{}
}

// replyError returns the error that the trainers' port sends for an answer.
func replyError(a taskqueue.Answer, err error) error {
	switch {
	case err == nil && a.Kind == taskqueue.AnswerEnded:
		err = wire.ErrJobFinished
	case err == nil && a.Kind == taskqueue.AnswerFailed:
		err = wire.ErrJobFailed
	case err == nil && a.Kind == taskqueue.AnswerRejoin:
		err = wire.ErrRejoin
	case err == nil && a.Kind == taskqueue.AnswerRolledBack:
		err = wire.ErrRolledBack
	case errors.Is(err, master.ErrNotLeader), errors.Is(err, taskqueue.ErrFenced), errors.Is(err, taskqueue.ErrUnknownOutcome):
		err = wire.ErrNotLeader
	}
	if err == nil {
		return nil
	}
	return wire.Error(rpc.ServerError(err.Error()))
}

// serve handles a request from a trainer's connection. The request may be a delayed copy.
func (n *node) serve(c *conn, request any, reply func(any, error)) {
	switch r := request.(type) {
	case wire.JoinRequest:
		n.put(c, &taskqueue.Join{ID: r.ID, Address: r.Address, Window: r.Window}, func(a taskqueue.Answer, _ uint64, err error) {
			j := &wire.JoinReply{Trainer: wire.Trainer{Ordinal: a.Ordinal, Incarnation: a.Incarnation}, JobID: n.world.jobID}
			if err == nil {
				c.who = j.Trainer
			}
			j.Epoch, j.Window = a.Epoch, a.Window
			reply(j, replyError(a, err))
		})
	case *wire.NextRequest:
		c.who = r.Trainer
		ev := &taskqueue.Request{
			Trainer: r.Ordinal, Incarnation: r.Incarnation, Seq: r.Seq, Ack: r.Ack, Held: r.Held, Finished: r.Finished, Want: r.Want, Most: r.Most,
			SeenCommit: r.SeenCommit, SeenProof: r.SeenProof, JobID: r.JobID, Epoch: r.Epoch, Accepts: r.Accepts,
		}
		leads := n.driven
		n.put(c, ev, func(a taskqueue.Answer, commit uint64, err error) {
			out := &wire.NextReply{Task: taskqueue.Task{Index: -1}, Finishes: a.Finishes, Base: a.Base, WaitFor: a.WaitFor}
			if leads != nil {
				out.Commit, out.CommitProof = leads.Proven()
			}
			if err == nil && a.Kind == taskqueue.AnswerTask {
				n.world.check.strategies.answered(n.world, a)
				n.world.check.population.answered(n.world, r.Ordinal, a)
				out.HyperParameters, out.From = a.HyperParameters, a.From
				table := n.world.table
				if a.Round != nil {
					table, out.Round = n.world.heldOut.Table, *a.Round
				}
				out.Task = taskqueue.Task{Index: a.Index, Token: a.Token, Chunks: table.TaskChunks(a.Index)}
				for _, more := range a.More {
					out.More = append(out.More, wire.FurtherTask{Task: taskqueue.Task{Index: more.Index, Token: more.Token, Chunks: table.TaskChunks(more.Index)}})
				}
			}
			reply(out, replyError(a, err))
		})
	case wire.HeartbeatRequest:
		c.who = r.Trainer
		n.put(c, &taskqueue.Heartbeat{Trainer: r.Ordinal, Incarnation: r.Incarnation, Moving: r.Moving}, func(a taskqueue.Answer, _ uint64, err error) {
			reply(nil, replyError(a, err))
		})
	case wire.LeaveRequest:
		c.who = wire.Trainer{}
		n.put(c, &taskqueue.Leave{Trainer: r.Ordinal, Incarnation: r.Incarnation}, func(a taskqueue.Answer, _ uint64, err error) {
			reply(nil, replyError(a, err))
		})
	case wire.StagedRequest:
		n.serveStaged(c, r, reply)
	case wire.LastStepRequest, wire.CutWatchRequest, wire.FlushedRequest, wire.StepRequest, rollbackRequest:
		n.serveSteps(c, r, reply)
	default:
		panic(fmt.Sprintf("sim: request %T", request))
	}
}
