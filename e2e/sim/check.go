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
	"trainmaster/master"
	"trainmaster/master/committer"
	"trainmaster/master/netrpc/wire"
	"trainmaster/pserver/checkpoint"
	"trainmaster/taskqueue"
)

// check holds the invariants. It derives the expected state from the ledger, as it is written,
// and compares that with the stored state and with the answers to trainers.
type check struct {
	world    *world
	ctx      context.Context
	state    *stored
	commits  int
	terms    map[int64]string // lock key by term
	last     int64            // newest term with a commit
	begin    map[int64]taskqueue.Clock
	heard    map[int64]*termState
	written  time.Duration // time of the last commit's first transaction
	verifier *taskqueue.Verifier

	numbered         map[taskqueue.TaskID]taskqueue.Token // of plain clients
	trained          map[delivery]bool                    // by clients with plain connections
	events           map[uint64][]byte                    // ledger entries by commit, in histories with a ledger
	sealed           uint64                               // newest sealed commit
	tasks            map[taskPosition]*history
	sessions         map[taskqueue.Ordinal]*sessionState
	answered         map[request]dispatch
	sending          map[*lock]*sendState
	joins            map[string]bool // ids that join in this commit
	closed           map[taskqueue.Pass]bool
	newest           map[taskqueue.Ordinal]*taskqueue.Request
	ended            taskqueue.Status
	step, generation uint64                     // of the last committed step, with explicit commits
	stepAt           time.Duration              // time of that commit
	stepped          bool                       // this commit commits or rolls back steps
	retried          int                        // number of tasks that an operator retried
	charged          map[taskqueue.Ordinal]bool // trainers with a timeout or a failure in this commit
	stepBook         *stepBook
	rounds           *roundBook
	strategies       strategyBook
	population       *populationBook
	segments         segmentBook
	named            *checkpoint.Set           // checkpoint set that this commit names, or nil
	epochs           map[uint32]map[sample]int // committed records at the start of each epoch
	gone             map[string]int            // reports of the end of a trainer, in progress
	fenced           map[string]bool           // ids whose sessions a leader ends because they did not stop for a cut
	untrusted        bool                      // answers are being sent without a commit and without a valid lease
}

// taskPosition is a task in a pass.
type taskPosition struct {
	pass     taskqueue.Pass
	position int
}

// history holds the ledger events of a task in a pass.
type history struct {
	finished bool
	applied  uint64 // the step of its finish, while that is not committed; otherwise 0
	stuck    bool   // taken from a trainer in this epoch, with explicit commits
	aside    bool
	index    int // task index, if the task was set aside
	failures int
	returns  int
	attempts map[taskqueue.Attempt]*attempt
}

// attempt is one dispatch.
type attempt struct {
	trainer taskqueue.Ordinal
	clock   taskqueue.Clock
	term    int64
	at      time.Duration
	open    bool // not finished and not taken back
}

type sessionState struct {
	id          string
	term        int64 // term of its join
	incarnation uint64
	joined      time.Duration
	lost        bool
	left        bool
}

// termState holds the requests that a term has received from trainers.
type termState struct {
	began time.Duration
	sent  time.Duration // start of the last batch
	heard map[taskqueue.Ordinal][]reception
	gone  map[taskqueue.Ordinal]time.Duration // when a connection was closed

	failed          time.Duration   // time of the last failed commit
	clock           taskqueue.Clock // job clock of the last commit
	clockAt         time.Duration   // start of that commit; 0: none
	saveAt, saveEnd time.Duration   // start and end of the newest save
	uncounted       time.Duration   // slow saves since clockAt
	behind          time.Duration   // delay of the clock since the first commit of the term
	parts           time.Duration   // duration of the parts of the batch in the making
	refused         time.Duration   // duration of refused parts since the last commit
}

// request is one request of a session.
type request struct {
	trainer     taskqueue.Ordinal
	incarnation uint64
	seq         uint64
}

type dispatch struct {
	taskPosition
	attempt taskqueue.Attempt
}

// sendState is the newest commit that a term has sent.
type sendState struct {
	number  uint64
	bytes   string
	unknown bool
}

func newCheck(w *world) *check {
	return &check{
		world: w, ctx: context.Background(), state: &stored{Snapshot: &taskqueue.Snapshot{}}, terms: map[int64]string{}, begin: map[int64]taskqueue.Clock{}, heard: map[int64]*termState{},
		verifier: taskqueue.NewVerifier(), tasks: map[taskPosition]*history{}, trained: map[delivery]bool{}, numbered: map[taskqueue.TaskID]taskqueue.Token{}, events: map[uint64][]byte{}, sessions: map[taskqueue.Ordinal]*sessionState{},
		answered: map[request]dispatch{}, sending: map[*lock]*sendState{}, closed: map[taskqueue.Pass]bool{}, joins: map[string]bool{}, charged: map[taskqueue.Ordinal]bool{}, newest: map[taskqueue.Ordinal]*taskqueue.Request{}, fenced: map[string]bool{}, gone: map[string]int{}, epochs: map[uint32]map[sample]int{}, stepBook: newStepBook(), rounds: newRoundBook(), population: newPopulationBook(),
	}
}

func (c *check) breaks(invariant, format string, args ...any) {
	c.world.breaks(invariant, format, args...)
}

func (c *check) over() bool {
	return c.ended == taskqueue.Ended || c.ended == taskqueue.Failed
}

// wrote checks a transaction that etcd has applied.
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
	c.strategies.before(c.world)
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
		c.breaks("a set is named with its cut", "set %d is named, cut %d is committed", c.named.Number, c.step)
	}
	c.columns(next)
	c.keys(next)
	c.rounds.written(c.world, req)
	c.strategies.written(c.world, req, next.Clock)
	c.population.written(c.world, req, next, ledger)
	if c.stepped && c.world.failed == nil {
		c.committedRecords(next)
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

// term checks the writer of a commit: only the holder of the lock commits, terms never decrease, and commit numbers have no
// gaps.
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
		c.breaks("only the leader commits", "commit %d has term %d of %s (fence %d), the lock is %s of term %d", next.Commit, next.LockRevision, key, revision, holder.GetKey(), holder.GetCreateRevision())
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

// time checks that the job clock never runs backward or faster than real time, and by at most its lead between commits.
func (c *check) time(next *stored) {
	if c.state.Commit == 0 {
		return
	}
	passed := next.Clock.Sub(c.state.Clock)
	if passed < 0 || passed > committer.ClockLead {
		c.breaks("the job clock stops without commits", "commits %d to %d: clock %d to %d", c.state.Commit, next.Commit, c.state.Clock, next.Clock)
	}
	t := c.heard[next.LockRevision]
	if t == nil || t.sent == 0 || c.world.plan.faults.jump != 0 { // sent is 0 for the commit that opens the term, if its outcome was unknown
		return
	}
	if t.refused > 0 { // in this batch or in an earlier one
		c.written, t.clockAt, t.refused = t.sent, 0, 0
		return
	}
	if gone := t.sent - max(t.began, c.written); passed > gone+2*time.Millisecond {
		c.breaks("the job clock is no faster than time", "%v in %v", passed, gone)
	}
	c.written = t.sent
	c.clockRate(t, next)
}

// slowStore is the longest duration of a commit that the job clock counts.
const slowStore = time.Second

// clockRate checks that the job clock counts all time in a term, except time beyond its lead and
// commits slower than slowStore.
func (c *check) clockRate(t *termState, next *stored) {
	gone, passed := t.sent-t.clockAt-t.uncounted, next.Clock.Sub(t.clock)
	first := t.clockAt == 0
	t.clockAt, t.clock, t.uncounted = t.sent, next.Clock, 0
	if first || gone > committer.ClockLead {
		return
	}
	if t.behind += gone - passed; t.behind > 2*time.Millisecond {
		c.breaks("the job clock is no slower than time", "%v in %v, and %v behind in this term", passed, gone, t.behind)
	}
}

// saving records a save of a term: from its first transaction to the last answer.
func (t *termState) saving(now time.Duration, begins bool) {
	if begins {
		t.endSave()
		t.saveAt = now
	}
	t.saveEnd = now
}

// endSave adds a finished slow save to the uncounted time.
func (t *termState) endSave() {
	if took := t.saveEnd - t.saveAt; took > slowStore {
		t.uncounted += took
	}
	t.saveAt, t.saveEnd = 0, 0
}

func (c *check) jobID(next *stored) {
	if c.state.Commit > 0 && string(next.JobID) != string(c.state.JobID) {
		c.breaks("a job keeps its id", "commit %d has another job id", next.Commit)
	}
	copy(c.world.jobID[:], next.JobID)
}

func (c *check) of(p taskPosition) *history {
	h := c.tasks[p]
	if h == nil {
		h = &history{attempts: map[taskqueue.Attempt]*attempt{}}
		c.tasks[p] = h
	}
	return h
}

// lost checks that a lost trainer was silent for its time to live, or for the grace period.
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
	if c.fenced[s.id] || c.gone[s.id] > 0 {
		return
	}
	silence := c.world.plan.options.SessionTTL
	if c.world.plan.exact { // after a timeout in a refused commit, the trainer has the grace period
		silence = min(silence, c.world.plan.options.Grace)
	}
	t := c.heard[next.LockRevision]
	heard := max(s.joined, c.lastReceived(t, o))
	if gone, ok := t.gone[o]; ok && gone >= heard || s.left {
		silence = min(silence, c.world.plan.options.Grace)
	}
	if c.world.plan.faults.jump == 0 && !c.joins[s.id] && c.world.now-heard < silence {
		c.breaks("an active trainer is not lost", "trainer %d, last request %v ago", o, c.world.now-heard)
	}
}

// quiesceTime is the time that trainers have to stop for a cut.
const quiesceTime = 10 * time.Second

// fences records that a leader ends the sessions of trainers, and checks that they had enough time to stop.
func (c *check) fences(n *node, ids []string) {
	if waited := c.world.now - n.cutBegan; waited < quiesceTime {
		c.breaks("trainers have the time to stop for a cut", "%s ends the sessions of %v after %v", n.name, ids, waited)
	}
	for _, id := range ids {
		c.fenced[id] = true
	}
}

// checkBatch checks that a commit number is sent with one content, unless the commit failed.
func (c *check) checkBatch(k *lock, state []byte) {
	var s taskqueue.Snapshot
	if err := c.world.codec.decode(state, &s); err != nil {
		c.breaks("the state can be read", "%v", err)
		return
	}
	last := c.sending[k]
	if last != nil && last.unknown && last.number == s.Commit && last.bytes != string(state) {
		c.breaks("a commit number has one batch", "commit %d of term %d is sent with other bytes while its outcome is unknown", s.Commit, k.term.Revision)
	}
	if last == nil || last.bytes != string(state) {
		if t := c.heard[k.term.Revision]; t != nil {
			t.sent = c.world.now - t.parts - t.refused // the clock of a batch is the time before its parts
			t.saving(c.world.now-t.parts, true)
			t.parts = 0
		}
		c.sending[k] = &sendState{number: s.Commit, bytes: string(state)}
	}
}

// returns records the end of a call of a term to etcd.
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

// recovers checks that a new term can read the stored state.
func (c *check) recovers(n *node, k *lock, err error) {
	c.ledger()
	c.heard[k.term.Revision] = &termState{began: c.world.now, heard: map[taskqueue.Ordinal][]reception{}, gone: map[taskqueue.Ordinal]time.Duration{}}
	for _, kind := range []error{taskqueue.ErrDamaged, taskqueue.ErrNewer} {
		if errors.Is(err, kind) {
			c.breaks("the next term can read the state", "%s: %v", n.name, err)
		}
	}
}

// receives records an event that a leader received.
func (c *check) receives(ctx context.Context, n *node, ev taskqueue.Event) {
	switch ev := ev.(type) {
	case *taskqueue.Request:
		c.newest[ev.Trainer] = ev
		c.activity(ctx, n, ev.Trainer, ev.Incarnation)
	case *taskqueue.Heartbeat:
		c.activity(ctx, n, ev.Trainer, ev.Incarnation)
	case *taskqueue.PlainAsk:
		c.activity(ctx, n, ev.Trainer, ev.Incarnation)
	case *taskqueue.Disconnected:
		if s := c.sessions[ev.Trainer]; s != nil && s.incarnation == ev.Incarnation {
			c.termOf(n).gone[ev.Trainer] = c.world.now
		}
	case *taskqueue.Join: // also if its commit is refused, because the process is a new one
		for _, s := range c.sessions {
			s.left = s.left || s.id == ev.ID
		}
	case *taskqueue.Leave:
		if s := c.sessions[ev.Trainer]; s != nil && s.incarnation == ev.Incarnation {
			s.left = true
		}
	}
}

// hasGone notes a report that a trainer has ended. Until the answer, its session may end without the grace period, and after a refused
// commit with it.
func (c *check) hasGone(id string) (answered func(taskqueue.Answer, uint64, error)) {
	c.gone[id]++
	return func(_ taskqueue.Answer, _ uint64, err error) {
		c.gone[id]--
		for _, s := range c.sessions {
			s.left = s.left || s.id == id && err != nil && !errors.Is(err, master.ErrNotLeader)
		}
	}
}

func (c *check) activity(ctx context.Context, n *node, o taskqueue.Ordinal, incarnation uint64) {
	if s := c.sessions[o]; s != nil && s.incarnation == incarnation {
		t := c.termOf(n)
		t.heard[o] = append(t.heard[o], reception{c.world.now, ctx})
	}
}

// reception is an event that a leader received. It counts when its batch is sent, unless its
// connection is closed before.
type reception struct {
	at  time.Duration
	ctx context.Context
}

// lastReceived returns the time of the newest event of a trainer that was in a batch of the term.
func (c *check) lastReceived(t *termState, o taskqueue.Ordinal) time.Duration {
	last := t.began // a new term treats all sessions as active
	for _, h := range t.heard[o] {
		if h.at < t.sent && h.ctx.Err() == nil {
			last = max(last, h.at)
		}
	}
	return last
}

// termOf returns the events of the term that a node leads.
func (c *check) termOf(n *node) *termState {
	return c.heard[n.lock.term.Revision]
}

func (c *check) leaves(who wire.Trainer) {
	if s := c.sessions[who.Ordinal]; s != nil {
		s.left = true
	}
}

// final checks the reports of a job that has ended.
func (c *check) final() {
	for _, r := range c.verifier.Report() {
		if c.ended == taskqueue.Ended && r.Set == 0 && !c.closed[r.Pass] {
			c.breaks("passes end", "the job ended with pass %d open", r.Pass)
		}
		if r.Set == 0 && c.ended == taskqueue.Ended && r.Tasks != c.world.plan.tasks {
			c.breaks("a pass has all tasks", "%+v, expected %d tasks", r, c.world.plan.tasks)
		}
		if r.Missing != 0 || r.CountedTwice != 0 || (r.Set > 0 && c.ended == taskqueue.Ended || r.Set == 0 && c.closed[r.Pass]) && r.CountedOnce+r.SetAside+r.Abandoned != r.Tasks {
			c.breaks("every task is counted once or set aside", "%+v", r)
		}
	}
	if c.world.plan.cuts {
		c.latestIsLast()
	}
	c.ledger()
	if c.world.heldOut != nil && c.ended == taskqueue.Ended {
		c.rounds.final(c.world)
		c.population.final(c.world)
	}
	if passes := c.world.plan.options.Passes; c.ended == taskqueue.Ended && len(c.closed) != passes {
		c.breaks("passes end", "%d of %d", len(c.closed), passes)
	}
}

// describe formats the state of the job.
func (c *check) describe() string {
	return fmt.Sprintf("commit %d, status %v, %+v, live %+v, aside %+v", c.state.Commit, c.state.Status, c.state.set, c.state.live, c.state.aside)
}

// anyToken returns a random or an old token.
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
		tok.Epoch = c.state.Epoch - 1 // the master trusts a finish with a dispatched token of this epoch
	}
	if len(c.state.live) > 0 && rng.IntN(2) == 0 {
		e := c.state.live[rng.IntN(len(c.state.live))]
		tok.Pass, tok.Position, tok.Attempt = e.pass, e.position, e.next+taskqueue.Attempt(rng.IntN(3))
	}
	return tok
}
