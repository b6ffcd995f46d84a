package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/etcdstore/fence"
	"trainmaster/master/decide"
	"trainmaster/master/netrpc/wire"
	"trainmaster/pserver/checkpoint"
	"trainmaster/taskqueue"
)

// check holds the invariants. It keeps its own books from the ledger, which it reads as it
// is written, and compares them with the stored state and with what trainers are told.
type check struct {
	world    *world
	ctx      context.Context
	state    *stored
	commits  int
	terms    map[int64]string // term -> its lock key
	last     int64            // the newest term that committed
	begin    map[int64]taskqueue.Clock
	heard    map[int64]*termState
	written  time.Duration // when the last commit was sent
	verifier *taskqueue.Verifier

	trained          map[delivery]bool // by clients that do not join
	events           map[uint64][]byte // the ledger, in histories that keep it
	sealed           uint64            // of it, the last commit that was found in a file
	tasks            map[place]*history
	sessions         map[taskqueue.Ordinal]*sessionState
	answered         map[request]dispatch
	sending          map[*lock]*sendState
	joins            map[string]bool // ids that join in this commit
	closed           map[taskqueue.Pass]bool
	newest           map[taskqueue.Ordinal]*taskqueue.Request
	ended            taskqueue.Status
	step, generation uint64                     // the last committed one, and the ring's, with explicit commits
	stepAt           time.Duration              // when it was committed
	stepped          bool                       // in this commit
	retried          int                        // tasks, by an operator
	charged          map[taskqueue.Ordinal]bool // whose sessions ended for a time-out or a failure, in this commit
	stepBook         *stepBook
	named            *checkpoint.Set           // by this commit; nil: none
	epochs           map[uint32]map[sample]int // what was committed when each began
	untrusted        bool                      // the answers of this moment left without a commit, and without a lease that is trusted
}

// place is a task in a pass.
type place struct {
	pass     taskqueue.Pass
	position int
}

// history is what the ledger says of a task in a pass.
type history struct {
	finished bool
	applied  uint64 // the step of its finish, which is not committed
	stuck    bool   // taken from a trainer in this epoch, with explicit commits
	aside    bool
	index    int // of the task that was set aside
	failures int
	returns  int
	attempts map[taskqueue.Attempt]*handout
}

// handout is one dispatch.
type handout struct {
	trainer taskqueue.Ordinal
	clock   taskqueue.Clock
	term    int64
	moment  time.Duration
	open    bool // neither finished nor taken back
}

type sessionState struct {
	id          string
	term        int64 // that it joined in
	incarnation uint64
	joined      time.Duration
	lost        bool
	left        bool
}

// termState is what a term heard of the trainers.
type termState struct {
	began time.Duration
	sent  time.Duration // its last batch
	heard map[taskqueue.Ordinal][]hearing
	gone  map[taskqueue.Ordinal]time.Duration // its connection

	failed          time.Duration   // when a commit failed last
	clock           taskqueue.Clock // of its last commit
	clockAt         time.Duration   // when that was sent; 0: there is none
	saveAt, saveEnd time.Duration   // of the save under way, or the last one
	uncounted       time.Duration   // slow saves since clockAt
	behind          time.Duration   // the clock, since the term's first commit
}

// request is one request of a session.
type request struct {
	trainer     taskqueue.Ordinal
	incarnation uint64
	seq         uint64
}

type dispatch struct {
	place
	attempt taskqueue.Attempt
}

// sendState is what a term sent last.
type sendState struct {
	number  uint64
	bytes   string
	unknown bool
}

func newCheck(w *world) *check {
	return &check{
		world: w, ctx: context.Background(), state: &stored{Snapshot: &taskqueue.Snapshot{}}, terms: map[int64]string{}, begin: map[int64]taskqueue.Clock{}, heard: map[int64]*termState{},
		verifier: taskqueue.NewVerifier(), tasks: map[place]*history{}, trained: map[delivery]bool{}, events: map[uint64][]byte{}, sessions: map[taskqueue.Ordinal]*sessionState{},
		answered: map[request]dispatch{}, sending: map[*lock]*sendState{}, closed: map[taskqueue.Pass]bool{}, joins: map[string]bool{}, charged: map[taskqueue.Ordinal]bool{}, newest: map[taskqueue.Ordinal]*taskqueue.Request{}, epochs: map[uint32]map[sample]int{}, stepBook: newStepBook(),
	}
}

func (c *check) breaks(invariant, format string, args ...any) {
	c.world.breaks(invariant, format, args...)
}

func (c *check) over() bool {
	return c.ended == taskqueue.Ended || c.ended == taskqueue.Failed
}

// wrote checks a transaction that etcd has just applied.
func (c *check) wrote(req *pb.TxnRequest) {
	put := req.Success[0].GetRequestPut()
	if put == nil || string(put.Key) != fence.StateKey {
		return
	}
	var snapshot taskqueue.Snapshot
	if err := c.world.codec.decode(put.Value, &snapshot); err != nil {
		c.breaks("the state can be read", "%v", err)
		return
	}
	next, err := readColumns(&snapshot)
	if err != nil {
		c.breaks("the state can be read", "commit %d: %v", snapshot.Commit, err)
		return
	}
	c.commits++
	c.names(req)
	c.term(req, next)
	c.stepWritten(req)
	c.time(next)
	c.jobID(next)
	before := c.state
	c.state = next
	c.world.note("commit %d, term %d, clock %d", next.Commit, next.LockRevision, next.Clock)
	var ledger []byte
	for _, op := range req.Success[1:] {
		if p := op.GetRequestPut(); p != nil && strings.HasPrefix(string(p.Key), "/ledger/") {
			if string(p.Key) != taskqueue.LedgerKey(next.Commit) {
				c.breaks("the ledger goes with the state", "commit %d carries %s", next.Commit, p.Key)
			}
			ledger = p.Value
			if c.world.etcd.ledger {
				c.events[next.Commit] = bytes.Clone(ledger)
			}
		}
	}
	c.applyEvents(before, next, ledger)
	if c.named != nil && c.step != c.named.Number {
		c.breaks("the name of a set and what counts are one", "set %d is named, cut %d is committed", c.named.Number, c.step)
	}
	c.columns(next)
	c.keys(next)
	if c.stepped && c.world.failed == nil {
		c.exactly(next)
		c.stepped = false
	}
	if c.commits%8 == 0 || next.Status == taskqueue.Ended || next.Status == taskqueue.Failed {
		if err := c.verifier.CrossCheck(&snapshot); err != nil {
			c.breaks("the ledger and the state agree", "commit %d: %v", next.Commit, err)
		}
	}
	if c.world.failed != nil {
		c.world.note("state: %+v, live %+v, aside %+v", next.Snapshot.Sets, next.live, next.aside)
	}
}

// term: two masters never commit in one term, nor in an older one than the last; commits
// follow each other without a gap.
func (c *check) term(req *pb.TxnRequest, next *stored) {
	var key string
	var revision int64
	for _, compare := range req.Compare {
		if compare.Target == pb.Compare_CREATE {
			key, revision = string(compare.Key), compare.GetCreateRevision()
		}
	}
	holder := c.world.etcd.first(lockPrefix)
	if revision != next.LockRevision || string(holder.GetKey()) != key || holder.GetCreateRevision() != next.LockRevision {
		c.breaks("only the leader commits", "commit %d says term %d of %s (fence %d), the lock is %s of term %d", next.Commit, next.LockRevision, key, revision, holder.GetKey(), holder.GetCreateRevision())
	}
	if other := c.terms[next.LockRevision]; other != "" && other != key || next.LockRevision < c.last {
		c.breaks("two masters never commit in one term", "commit %d of term %d by %s, after term %d (%s)", next.Commit, next.LockRevision, key, c.last, other)
	}
	if c.terms[next.LockRevision] == "" {
		c.begin[next.LockRevision] = c.state.Clock
	}
	c.terms[next.LockRevision], c.last = key, next.LockRevision
	if next.Commit != c.state.Commit+1 {
		c.breaks("commits follow each other", "commit %d after %d", next.Commit, c.state.Commit)
	}
}

// time: the job clock never goes back, and never further than its lead beyond a commit.
func (c *check) time(next *stored) {
	if c.state.Commit == 0 {
		return
	}
	passed := next.Clock.Sub(c.state.Clock)
	if passed < 0 || passed > decide.ClockLead {
		c.breaks("the job clock stands while nothing commits", "from commit %d to %d it goes from %d to %d", c.state.Commit, next.Commit, c.state.Clock, next.Clock)
	}
	t := c.heard[next.LockRevision]
	if t == nil || c.world.plan.faults.jump != 0 {
		return
	}
	if gone := t.sent - max(t.began, c.written); passed > gone+2*time.Millisecond {
		c.breaks("the job clock is no faster than time", "%v in %v", passed, gone)
	}
	c.written = t.sent
	c.slow(t, next)
}

// slowStore is what a commit may take and still be time that the job clock counts.
const slowStore = time.Second

// slow: in a term, the job clock counts all time but that of commits slower than slowStore, and
// that beyond its lead.
func (c *check) slow(t *termState, next *stored) {
	gone, passed := t.sent-t.clockAt-t.uncounted, next.Clock.Sub(t.clock)
	first := t.clockAt == 0
	t.clockAt, t.clock, t.uncounted = t.sent, next.Clock, 0
	if first || gone > decide.ClockLead {
		return
	}
	if t.behind += gone - passed; t.behind > 2*time.Millisecond {
		c.breaks("the job clock is no slower than time", "%v in %v, and %v behind in this term", passed, gone, t.behind)
	}
}

// saving follows a save of a term: from its first transaction to the last answer.
func (t *termState) saving(now time.Duration, begins bool) {
	if begins {
		t.settle()
		t.saveAt = now
	}
	t.saveEnd = now
}

// settle takes the save that is over into what the clock does not count.
func (t *termState) settle() {
	if took := t.saveEnd - t.saveAt; took > slowStore {
		t.uncounted += took
	}
	t.saveAt, t.saveEnd = 0, 0
}

func (c *check) jobID(next *stored) {
	if c.state.Commit > 0 && string(next.JobID) != string(c.state.JobID) {
		c.breaks("a job is never begun anew", "commit %d has another job id", next.Commit)
	}
	copy(c.world.jobID[:], next.JobID)
}

func (c *check) of(p place) *history {
	h := c.tasks[p]
	if h == nil {
		h = &history{attempts: map[taskqueue.Attempt]*handout{}}
		c.tasks[p] = h
	}
	return h
}

// applyEvents updates the books by the events of a commit.
func (c *check) applyEvents(before, next *stored, value []byte) {
	if err := c.verifier.Add(next.Commit, value); err != nil {
		c.breaks("the ledger tells what can have happened", "%v", err)
		return
	}
	clear(c.joins)
	clear(c.charged)
	for ev, err := range taskqueue.LedgerEvents(value) {
		if err == nil && ev.Kind == taskqueue.EventJoined {
			c.joins[ev.ID] = true // and the session that had the name is lost
		}
		if err == nil && c.world.plan.exact && (ev.Kind == taskqueue.EventTimedOut || ev.Kind == taskqueue.EventFailed) {
			c.charged[ev.Trainer] = true
		}
	}
	for ev, err := range taskqueue.LedgerEvents(value) {
		if err != nil {
			c.breaks("the ledger tells what can have happened", "%v", err)
			return
		}
		c.world.note("  %+v", ev)
		c.event(before, next, &ev)
	}
}

func (c *check) event(before, next *stored, ev *taskqueue.LedgerEvent) {
	p := place{ev.Pass, ev.Position}
	switch ev.Kind {
	case taskqueue.EventJoined:
		c.sessions[ev.Trainer] = &sessionState{id: ev.ID, term: next.LockRevision, incarnation: ev.Incarnation, joined: c.heard[next.LockRevision].sent}
	case taskqueue.EventLost:
		c.lost(next, ev.Trainer)
	case taskqueue.EventDispatched:
		h := c.of(p)
		if h.finished || h.applied != 0 {
			c.breaks("a finished task is never handed out again", "pass %d, position %d", ev.Pass, ev.Position)
		}
		if h.stuck {
			c.breaks("what was taken from a trainer is handed out in a new epoch only", "pass %d, position %d", ev.Pass, ev.Position)
		}
		if h.attempts[ev.Attempt] != nil {
			c.breaks("an attempt is handed out once", "pass %d, position %d, attempt %d", ev.Pass, ev.Position, ev.Attempt)
		}
		h.attempts[ev.Attempt] = &handout{trainer: ev.Trainer, clock: next.Clock, term: next.LockRevision, moment: c.world.now, open: true}
	case taskqueue.EventFinished:
		h := c.of(p)
		if h.finished {
			c.breaks("a task is counted once in a pass", "pass %d, position %d", ev.Pass, ev.Position)
		}
		if h.attempts[ev.Attempt] == nil {
			c.breaks("only what was handed out counts", "pass %d, position %d, attempt %d", ev.Pass, ev.Position, ev.Attempt)
		}
		h.finished = true
		for _, a := range h.attempts {
			a.open = false
		}
		c.plainFinish(ev)
	case taskqueue.EventApplied:
		h := c.of(p)
		if h.finished || h.applied != 0 {
			c.breaks("a task is counted once in a pass", "pass %d, position %d", ev.Pass, ev.Position)
		}
		if h.attempts[ev.Attempt] == nil {
			c.breaks("only what was handed out counts", "pass %d, position %d, attempt %d", ev.Pass, ev.Position, ev.Attempt)
		}
		h.applied = ev.Step
		for _, a := range h.attempts {
			a.open = false
		}
	case taskqueue.EventCommitted, taskqueue.EventRolledBack:
		c.steps(before, ev)
	case taskqueue.EventReturned, taskqueue.EventFailed, taskqueue.EventTimedOut:
		c.takenBack(next, ev)
	case taskqueue.EventSetAside:
		h := c.of(p)
		h.index, h.aside = ev.Index, true
		if limit := c.world.plan.options.MaxFailures; 3*h.failures+h.returns <= 3*limit {
			c.breaks("a task is set aside after too many failures", "pass %d, position %d: %d failures, %d returns, the limit is %d", ev.Pass, ev.Position, h.failures, h.returns, limit)
		}
	case taskqueue.EventRetried:
		c.retried++
		for _, h := range c.tasks {
			if h.aside && h.index == ev.Index {
				h.failures, h.returns, h.aside = 0, 0, false
			}
		}
	case taskqueue.EventPassClosed:
		c.closed[ev.Pass] = true
	case taskqueue.EventEnded:
		c.ended = ev.Status
		if ev.Status == taskqueue.Failed && !strings.Contains(ev.Reason, "counted nothing") {
			c.breaks("the sums of a pass add up", "%s", ev.Reason)
		}
	}
}

// takenBack: a task is taken back from one who holds it, and for a time-out not before its time.
func (c *check) takenBack(next *stored, ev *taskqueue.LedgerEvent) {
	h := c.of(place{ev.Pass, ev.Position})
	a := h.attempts[ev.Attempt]
	if a == nil || !a.open || a.trainer != ev.Trainer {
		c.breaks("only what is held is taken back", "%+v", *ev)
		return
	}
	if c.world.plan.exact && ev.Kind != taskqueue.EventReturned {
		h.stuck = true // and stays where it is
	} else {
		a.open = false
	}
	switch ev.Kind {
	case taskqueue.EventReturned:
		h.returns++
		return
	case taskqueue.EventFailed:
		h.failures++
		return
	}
	h.failures++
	least := c.world.plan.options.TimeoutMin
	if ran := next.Clock.Sub(a.clock); ran < least {
		c.breaks("nothing times out early", "pass %d, position %d, attempt %d after %v", ev.Pass, ev.Position, ev.Attempt, ran)
	}
	if ran := next.Clock.Sub(c.begin[next.LockRevision]); a.term != next.LockRevision && ran < least && next.Clock.Sub(a.clock) < 10*least {
		c.breaks("a new term gives every task its time", "pass %d, position %d, attempt %d timed out %v after the term began", ev.Pass, ev.Position, ev.Attempt, ran)
	}
}

// lost: a trainer that is heard is not lost.
func (c *check) lost(next *stored, o taskqueue.Ordinal) {
	s := c.sessions[o]
	if s == nil || s.lost {
		c.breaks("a session is lost once", "trainer %d", o)
		return
	}
	s.lost = true
	if s.plain() {
		c.plainLost(next, o, s)
		return
	}
	if c.world.plan.exact {
		c.keeps(o)
		if c.charged[o] {
			return
		}
	}
	silence := c.world.plan.options.SessionTTL
	if c.world.plan.exact { // one that timed out in a commit that was refused has the grace to show up
		silence = min(silence, c.world.plan.options.Grace)
	}
	t := c.heard[next.LockRevision]
	heard := max(s.joined, c.lastHeard(t, o))
	if gone, ok := t.gone[o]; ok && gone >= heard || s.left {
		silence = min(silence, c.world.plan.options.Grace)
	}
	if c.world.plan.faults.jump == 0 && !c.joins[s.id] && c.world.now-heard < silence {
		c.breaks("who is heard is not lost", "trainer %d, heard %v ago", o, c.world.now-heard)
	}
}

// sends: what was sent under a number is all that is ever sent under it, unless it failed.
func (c *check) sends(k *lock, state []byte) {
	var s taskqueue.Snapshot
	if err := c.world.codec.decode(state, &s); err != nil {
		c.breaks("the state can be read", "%v", err)
		return
	}
	last := c.sending[k]
	if last != nil && last.unknown && last.number == s.Commit && last.bytes != string(state) {
		c.breaks("one batch under one number", "commit %d of term %d is sent with other bytes while the first ones may be on their way", s.Commit, k.term.Revision)
	}
	if last == nil || last.bytes != string(state) {
		if t := c.heard[k.term.Revision]; t != nil {
			t.sent = c.world.now
			t.saving(c.world.now, true)
		}
		c.sending[k] = &sendState{number: s.Commit, bytes: string(state)}
	}
}

// returns is called when a call of a term to etcd is over.
func (c *check) returns(k *lock) {
	if t := c.heard[k.term.Revision]; t != nil && t.saveAt != 0 {
		t.saving(c.world.now, false)
	}
}

func (c *check) sent(k *lock, err error) {
	if t := c.heard[k.term.Revision]; t != nil {
		t.failed = c.world.now
	}
	if errors.Is(err, taskqueue.ErrUnknownOutcome) {
		c.sending[k].unknown = true
	}
}

// recovers: what was stored can be read by the next term.
func (c *check) recovers(n *node, k *lock, err error) {
	c.ledger()
	c.heard[k.term.Revision] = &termState{began: c.world.now, heard: map[taskqueue.Ordinal][]hearing{}, gone: map[taskqueue.Ordinal]time.Duration{}}
	for _, kind := range []error{taskqueue.ErrDamaged, taskqueue.ErrNewer} {
		if errors.Is(err, kind) {
			c.breaks("the next term can read the state", "%s: %v", n.name, err)
		}
	}
}

// hears notes an event that the leader was handed.
func (c *check) hears(ctx context.Context, n *node, ev taskqueue.Event) {
	switch ev := ev.(type) {
	case *taskqueue.Request:
		c.newest[ev.Trainer] = ev
		c.hear(ctx, n, ev.Trainer, ev.Incarnation)
	case *taskqueue.Heartbeat:
		c.hear(ctx, n, ev.Trainer, ev.Incarnation)
	case *taskqueue.PlainAsk:
		c.hear(ctx, n, ev.Trainer, ev.Incarnation)
	case *taskqueue.Disconnected:
		if s := c.sessions[ev.Trainer]; s != nil && s.incarnation == ev.Incarnation {
			c.termOf(n).gone[ev.Trainer] = c.world.now
		}
	case *taskqueue.Join: // also when its commit is refused: the process is another one
		for _, s := range c.sessions {
			s.left = s.left || s.id == ev.ID
		}
	case *taskqueue.Leave:
		if s := c.sessions[ev.Trainer]; s != nil && s.incarnation == ev.Incarnation {
			s.left = true
		}
	}
}

func (c *check) hear(ctx context.Context, n *node, o taskqueue.Ordinal, incarnation uint64) {
	if s := c.sessions[o]; s != nil && s.incarnation == incarnation {
		t := c.termOf(n)
		t.heard[o] = append(t.heard[o], hearing{c.world.now, ctx})
	}
}

// hearing is an event that the leader was handed. It is heard with the batch that it is in,
// unless its connection is gone by then.
type hearing struct {
	at  time.Duration
	ctx context.Context
}

// lastHeard is when a term had last heard a trainer, by the time that it sent its last batch.
func (c *check) lastHeard(t *termState, o taskqueue.Ordinal) time.Duration {
	last := t.began // a term takes every trainer as heard
	for _, h := range t.heard[o] {
		if h.at < t.sent && h.ctx.Err() == nil {
			last = max(last, h.at)
		}
	}
	return last
}

// termOf is what the term that a node leads heard.
func (c *check) termOf(n *node) *termState {
	return c.heard[n.lock.term.Revision]
}

func (c *check) leaves(who wire.Trainer) {
	if s := c.sessions[who.Ordinal]; s != nil {
		s.left = true
	}
}

// final checks the reports of a job that is over.
func (c *check) final() {
	for _, r := range c.verifier.Report() {
		if c.ended == taskqueue.Ended && !c.closed[r.Pass] {
			c.breaks("passes end", "the job ended with pass %d open", r.Pass)
		}
		if r.Missing != 0 || r.CountedTwice != 0 || c.closed[r.Pass] && r.CountedOnce+r.SetAside != r.Tasks {
			c.breaks("every task is counted once or set aside", "%+v", r)
		}
	}
	if c.world.plan.cuts {
		c.latestIsLast()
	}
	c.ledger()
	if passes := c.world.plan.options.Passes; c.ended == taskqueue.Ended && len(c.closed) != passes {
		c.breaks("passes end", "%d of %d", len(c.closed), passes)
	}
}

// describe says where the job stands.
func (c *check) describe() string {
	return fmt.Sprintf("commit %d, status %v, %+v, live %+v, aside %+v", c.state.Commit, c.state.Status, c.state.set, c.state.live, c.state.aside)
}

// anyToken makes up a token, or finds an old one.
func (c *check) anyToken(rng *rand.Rand) taskqueue.Token {
	tok := taskqueue.Token{
		Epoch: uint32(rng.IntN(3)), Pass: taskqueue.Pass(rng.IntN(5)), Position: rng.IntN(c.world.plan.tasks+4) - 2, Attempt: taskqueue.Attempt(rng.IntN(4)),
	}
	if rng.IntN(4) > 0 {
		tok.Epoch = c.state.Epoch
	}
	if rng.IntN(10) == 0 {
		tok.Position = int(rng.Int64()) - 1<<62
	}
	if c.world.plan.exact {
		tok.Epoch = c.state.Epoch - 1 // one of this epoch that was handed out is a claim, and believed
	}
	if len(c.state.live) > 0 && rng.IntN(2) == 0 {
		e := c.state.live[rng.IntN(len(c.state.live))]
		tok.Pass, tok.Position, tok.Attempt = e.pass, e.position, e.next+taskqueue.Attempt(rng.IntN(3))
	}
	return tok
}
