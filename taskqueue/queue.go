package taskqueue

import (
	"maps"
	"slices"
	"time"
)

// Queue is the state machine of one job. It is not safe for concurrent use and has no clock: every event carries the job
// clock. The changes of an event beyond the state itself (roster keys, details of set-aside tasks, the ledger) gather in the
// queue. Ready returns them, to be written with the state in one transaction.
type Queue struct {
	opt Options

	cluster     uint64
	jobID       [16]byte
	job         string
	epoch       uint32
	commit      uint64 // of the state as last handed over
	clock       Clock
	nextOrdinal Ordinal
	status      Status
	reason      string
	saver       Ordinal
	saverUntil  Clock
	restores    uint8            // from a backup
	explicit    *explicitCommits // nil: a finish counts when it is committed
	sync        *syncSteps       // nil: gradients are applied as they arrive
	round       Round            // the newest evaluation round; Number 0: none
	model       Model            // of the newest training result that has one

	sets     []*set
	trainers map[Ordinal]*trainer
	byID     map[string]*trainer

	rates      []RateChange // in the order of their versions; of a synchronous job, those that a rollback may repeat, too
	rateNumber uint64       // of the last change

	steering   Steering // of the strategy, if there is one
	statistics Statistics
	observed   *Observation // by which steering has decided

	// What Ready returns.
	dirty        bool
	final        bool                // an answer of the batch is final
	roster       map[string]*trainer // id -> trainer, nil for a deleted key
	asides       map[string][]byte   // key -> detail, nil for a deleted key
	keys         []Write             // of other components
	ledger       ledgerWriter
	notices      []Notice
	effects      effects
	sessionEnded bool
	commitDue    bool // CheckpointDue was raised

	roundChanged, modelChanged bool

	steeringChanged, statisticsChanged bool

	population        Population // of the strategy, if it has one
	populationChanged bool

	modelSaved bool // the trainer of a population that saves the model has left after the end of the job

	hung map[string]*hung // by id of the trainer; volatile

	joins  int   // in this commit
	hold   bool  // no new dispatches
	warned Kinds // whose tasks no trainer accepted
}

// set is one dataset.
type set struct {
	id            int
	name          string
	kind          Kind
	passes        Pass // 0: the default of the kind
	weight        int
	credit        int // of the weighted choice among the datasets of a kind
	digest        [32]byte
	reportID      string
	parts         int
	partsDigest   [32]byte
	chunksPerTask int
	tasks         int
	chunks        int
	algorithm     uint8
	online        bool // AppendSegment adds tasks until closed
	closed        bool
	seed          uint64
	pass          Pass  // the newest open pass or, if none is open, the last pass
	cursor        int   // positions of pass below it were dispatched or skipped
	average       int64 // of completion times, in microseconds; 0 before the first
	open          []openPass
	table         *Table

	live        []*entry // in (pass, position) order, with holes (entry.gone)
	holes       int
	byKey       map[liveKey]*entry
	free        []*entry
	uncommitted []uncommittedTask // in (pass, position) order; of explicit commits only
	retry       int               // entries without holder
	first       int               // all entries before live[first] have a holder
	aside       map[int]*asideTask

	order     order // of pass
	orderPass Pass
	older     order // of an older open pass
	olderPass Pass
	ended     bool
	unsorted  bool // an entry of live came out of order
}

type liveKey struct {
	pass     Pass
	position int
}

// openPass counts one pass. sum1 and sum2 are the sums of the counted positions and
// of their squares modulo 2^64: at the end they must equal their closed form less the
// positions that were set aside.
type openPass struct {
	pass        Pass
	counted     int
	sum1, sum2  uint64
	live        int // derived
	uncommitted int // derived
}

// entry is a task that was dispatched and is still to be finished or set aside. Without a holder it waits to be dispatched
// again.
type entry struct {
	set         *set
	pass        Pass
	position    int
	base        int64 // records, in the task's order, that are in committed steps
	failures    int
	losses      int  // that were charged
	lost        bool // a trainer was lost that held it, charged or not
	next        Attempt
	holders     [2]holder
	holderCount int // how many of holders are in use
	slot        int
	gone        bool

	lastError  string // volatile
	lastHolder string
	former     []*trainer // volatile: holders with a session whose time ran out
}

// holder is one trainer that has the task. Start is 0 while the task is prefetched:
// its clock starts when the trainer's running task is finished.
type holder struct {
	trainer *trainer
	attempt Attempt
	request uint64
	start   Clock
	soft    Clock // deadline; volatile
	asked   bool  // for its progress, before the deadline; volatile
	mark    int64 // what base becomes with the commit that is under way, plus 1; 0: base stays
}

// asideTask is a task that failed too often in pass. If pass+1 was also open and had dispatched it already, the task is
// spared: it continues in pass+1.
type asideTask struct {
	index     int
	pass      Pass
	failures  int
	losses    int
	next      Attempt // in pass
	nextNewer Attempt // in pass+1, if set aside there too; 1 if never dispatched there
	base      int64   // as of an entry, in pass
	baseNewer int64   // in pass+1
	spared    bool    // in pass+1 it is live or counted
	dropped   bool    // permanently, by the operator
}

// trainer is one entry of the roster.
type trainer struct {
	ordinal     Ordinal
	id          string
	incarnation uint64
	address     string
	control     string // address for commands; "": it has none
	window      int    // tasks that it may hold, and have begun; 0: maxHeldJoined, of which it has begun one
	evaluates   bool   // it takes evaluation tasks with the answers to heartbeats
	draining    bool
	finished    bool // this incarnation has finished a task
	charged     bool // a loss of this incarnation was charged
	plain       bool // a connection that did not join
	stored      bool // has a key, with the commit in the making

	// Volatile.
	holds    []*entry
	accepts  Kinds // of its last request
	seen     Clock
	lostAt   Clock // when the grace of its lost connection ends; 0 while connected
	gone     bool  // its session has ended
	keeps    bool  // and it is counted in explicit.lost
	progress Progress
	late     []lateTask // the newest last
	rivals   rivals
}

// lateTask is an attempt that timed out. Its trainer may still finish it.
type lateTask struct {
	token    Token
	index    int
	start    Clock
	observed bool // its completion time is in the average
	stopped  bool // StopDue had it
}

// Progress is the progress that a trainer reports. It is not stored.
type Progress struct {
	Records int64   // trained by this incarnation
	Loss    float64 // mean over the last records
}

// New returns the queue of a job that never ran.
func New(job string, jobID [16]byte, cluster uint64, opt Options) *Queue {
	q := empty(opt)
	q.job, q.jobID, q.cluster, q.epoch, q.clock, q.nextOrdinal, q.dirty = job, jobID, cluster, 1, 1, 1, true
	if opt.ExplicitCommit {
		q.explicit = newExplicitCommits()
	}
	return q
}

func empty(opt Options) *Queue {
	q := &Queue{
		opt:      opt.withDefaults(),
		trainers: map[Ordinal]*trainer{},
		byID:     map[string]*trainer{},
		roster:   map[string]*trainer{},
		asides:   map[string][]byte{},
		effects:  effects{},
		hung:     map[string]*hung{},
	}
	if opt.Sync {
		q.sync = newSyncSteps()
	}
	return q
}

// Commit returns the number of the last commit that was handed over.
func (q *Queue) Commit() uint64 { return q.commit }

// JobID returns the random id of the job.
func (q *Queue) JobID() [16]byte { return q.jobID }

// Status returns the state of the job and, unless it runs, the reason.
func (q *Queue) Status() (Status, string) { return q.status, q.reason }

// Clock returns the job clock of the last event.
func (q *Queue) Clock() Clock { return q.clock }

// Active reports whether any task is dispatched: then the job clock must advance.
func (q *Queue) Active() bool {
	for _, s := range q.sets {
		if len(s.byKey) > 0 {
			return true
		}
	}
	return false
}

// Table returns the task table of a dataset, or nil.
func (q *Queue) Table(set int) *Table {
	if set < 0 || set >= len(q.sets) {
		return nil
	}
	return q.sets[set].table
}

// Notice is a change of state worth a line in the log.
type Notice struct {
	Error   bool
	Warning bool   // not an error yet
	What    string // a constant message
	Fields  map[string]any
}

func (q *Queue) notice(isError bool, what string, fields map[string]any) {
	q.notices = append(q.notices, Notice{Error: isError, What: what, Fields: fields})
}

func (q *Queue) warn(what string, fields map[string]any) {
	q.notices = append(q.notices, Notice{What: what, Fields: fields, Warning: true})
}

// orderOf returns the permutation of an open pass.
func (s *set) orderOf(p Pass) *order {
	switch p {
	case s.orderPass:
	case s.olderPass:
		return &s.older
	default:
		if s.orderPass != 0 && p < s.orderPass {
			s.older, s.olderPass = newOrder(s.algorithm, s.seed, p, s.tasks), p
			return &s.older
		}
		s.older, s.olderPass = s.order, s.orderPass
		s.order, s.orderPass = newOrder(s.algorithm, s.seed, p, s.tasks), p
	}
	return &s.order
}

func (s *set) openPass(p Pass) *openPass {
	for i := range s.open {
		if s.open[i].pass == p {
			return &s.open[i]
		}
	}
	return nil
}

// dispatched returns the end of the positions of pass p that were ever dispatched or
// skipped.
func (s *set) dispatched(p Pass) int {
	switch {
	case p == s.pass:
		return s.cursor
	case p < s.pass:
		return s.tasks
	}
	return 0
}

// add makes a live entry. Entries come in rising order but for operators' retries.
func (s *set) add(p Pass, position int) *entry {
	var e *entry
	if n := len(s.free); n > 0 {
		e, s.free = s.free[n-1], s.free[:n-1]
	} else {
		e = new(entry)
	}
	*e = entry{set: s, pass: p, position: position, next: 1, slot: len(s.live)}
	if n := len(s.live); n > 0 && !s.live[n-1].before(e) {
		s.unsorted = true
	}
	s.live = append(s.live, e)
	s.byKey[liveKey{p, position}] = e
	s.openPass(p).live++
	s.retry++
	s.first = min(s.first, e.slot)
	return e
}

// remove takes an entry without holders out of live.
func (s *set) remove(e *entry) {
	delete(s.byKey, liveKey{e.pass, e.position})
	s.openPass(e.pass).live--
	s.retry--
	e.gone = true
	s.holes++
}

func (e *entry) before(o *entry) bool {
	return e.pass < o.pass || e.pass == o.pass && e.position < o.position
}

// compact closes the holes of live and sorts it where an operator's retry came late.
func (s *set) compact() {
	if s.holes == 0 && !s.unsorted {
		return
	}
	n := 0
	for _, e := range s.live {
		if e.gone {
			s.free = append(s.free, e)
			continue
		}
		s.live[n] = e
		n++
	}
	clear(s.live[n:])
	s.live = s.live[:n]
	if s.unsorted {
		slices.SortFunc(s.live, func(a, b *entry) int {
			if a.before(b) {
				return -1
			}
			return 1
		})
		s.unsorted = false
	}
	s.holes, s.first = 0, n
	for i, e := range s.live {
		e.slot = i
		if e.holderCount == 0 && i < s.first {
			s.first = i
		}
	}
}

func (q *Queue) timeout(s *set) time.Duration {
	if s.average == 0 {
		return q.opt.FirstTimeout
	}
	t := time.Duration(timeoutFactor*s.average) * time.Microsecond
	return min(max(t, q.opt.TimeoutMin), q.opt.TimeoutMax)
}

// timeoutOf returns the timeout of a task: the timeout of its dataset, doubled for each failure of the task in its pass, up to
// TimeoutMax. So a task that is slower than the others eventually finishes.
func (q *Queue) timeoutOf(e *entry) time.Duration {
	t := q.timeout(e.set)
	//guard:timeout-grows-with-failures
	for n := 0; n < e.failures && t < q.opt.TimeoutMax; n++ {
		t = min(2*t, q.opt.TimeoutMax)
	}
	return t
}

func byOrdinal(a, b *trainer) int { return int(a.ordinal) - int(b.ordinal) }

// sortedTrainers returns the roster by ordinal.
func (q *Queue) sortedTrainers() []*trainer {
	return slices.SortedFunc(maps.Values(q.trainers), byOrdinal)
}

// Dispatchable reports whether a waiting trainer might now get an answer.
func (q *Queue) Dispatchable() bool {
	if q.status != Running {
		return q.status != Paused
	}
	if q.hold {
		return false
	}
	if q.waitsFor() != WaitTask {
		return true
	}
	own, isOwn := q.ownRound()
	for _, s := range q.sets {
		if t := q.trainers[own.Trainer]; isOwn && s.id == own.Set && (t == nil || t.commanded()) {
			continue // no request is answered with its tasks
		}
		if s.retry > 0 || len(s.open) > 0 && s.cursor < s.tasks && q.roomToDispatch(s) {
			return true
		}
	}
	return false
}

// Runners returns the joined trainers on whose training tasks the clock runs, by ordinal.
func (q *Queue) Runners() []Ordinal {
	var list []Ordinal
	for _, t := range q.trainers {
		//guard:evaluating-trainer-is-no-contributor
		if !t.gone && !t.plain && t.trains() {
			list = append(list, t.ordinal)
		}
	}
	slices.Sort(list)
	return list
}

// Trainers returns how many sessions there are.
func (q *Queue) Trainers() int { return len(q.trainers) }

// Saving returns how long the lease of the trainer that was elected to save the model still runs; 0: there is none.
func (q *Queue) Saving() time.Duration {
	if t := q.trainers[q.saver]; t == nil || t.gone || q.clock >= q.saverUntil {
		return 0
	}
	return q.saverUntil.Sub(q.clock)
}

// SetDigest returns the digest of a registered dataset.
func (q *Queue) SetDigest(set int) (digest [32]byte, ok bool) {
	if set < 0 || set >= len(q.sets) {
		return digest, false
	}
	return q.sets[set].digest, true
}

// PendingLedger returns how many bytes of ledger entries Ready would return.
func (q *Queue) PendingLedger() int { return len(q.ledger.buf) }

// Touch makes the next commit happen, for the job clock's sake.
func (q *Queue) Touch() { q.dirty = true }

// Hold stops new dispatches while the stored state is too large. Finishes still count.
func (q *Queue) Hold(on bool) { q.hold = on }

// Known reports whether a trainer has a session.
func (q *Queue) Known(o Ordinal, incarnation uint64) bool { return q.known(o, incarnation) != nil }

// Sessions lists the incarnations of all trainers that have a session, ascending. All other sessions below floor have ended
// permanently, and no later incarnation is below it.
func (q *Queue) Sessions() (floor uint64, incarnations []uint64) {
	for _, t := range q.trainers {
		//guard:sessions-listed
		incarnations = append(incarnations, t.incarnation)
	}
	slices.Sort(incarnations)
	return uint64(q.restores)<<restoresShift | (q.commit+1)<<commitShift, incarnations
}

// Epoch counts the rollbacks of the job, from 1.
func (q *Queue) Epoch() uint32 { return q.epoch }
