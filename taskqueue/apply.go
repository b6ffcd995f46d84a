package taskqueue

import (
	"errors"
	"fmt"
)

// Event is something that happened: one of the types below.
type Event interface {
	apply(q *Queue) Answer
}

// AnswerKind says what an answer is.
type AnswerKind uint8

// The kinds of answers.
const (
	AnswerNone       AnswerKind = iota // the request asked for nothing
	AnswerTask                         // Token and Index name the task
	AnswerWait                         // no answer yet: ask again
	AnswerEnded                        // the job has ended
	AnswerFailed                       // the job has failed
	AnswerRejoin                       // the trainer has no session: join
	AnswerDrained                      // the trainer is drained and holds nothing: leave
	AnswerStep                         // Place says where the steps of the job stand
	AnswerRolledBack                   // so does Place: the trainer has an older epoch
)

// Answer is the result of an event. The master may send it only after the commit that carries the event's changes.
type Answer struct {
	Kind   AnswerKind
	Token  Token
	Index  int
	Set    int
	Base   int64  // of the task: the record to begin with
	Reason string // of AnswerEnded; "": the passes are done
	// SetAside is the number of tasks set aside, of AnswerEnded.
	SetAside int
	Round    *Round // of an evaluation task, without its metrics
	// HyperParameters are of a training task; nil: the job has none. They must not be changed.
	HyperParameters map[string]float64
	More            []Answer    // further tasks.
	From            ModelSource // of a training task; zero: the trainer continues with its own model
	WaitFor         WaitFor     // of AnswerWait
	Place           StepPlace
	Finishes        []FinishStatus // one for each result of a request
	Ordinal         Ordinal
	Incarnation     uint64
	Granted         bool
	Window          int     // of a join.
	Epoch           uint32  // epoch of the job, for a trainer that joins or stages gradients
	Version         uint64  // of the last synchronous step
	Included        bool    // staged gradients are in the version after theirs
	Draining        bool    // of a heartbeat: its trainer is to leave when it has finished what it runs
	Stops           []Token // of a heartbeat: dispatches to give up
	Late            []Token // of a heartbeat: more than half of their time has passed
	Err             error

	repeated bool // the task was dispatched for an earlier copy of the request
}

// FinishStatus is the verdict on one finish.
type FinishStatus uint8

// The verdicts. AlreadyCounted is a success for the user.
const (
	Counted FinishStatus = iota // with explicit commits: it will be, with the commit of its step
	AlreadyCounted
	Stale    // names no task that could be finished: nothing changed
	Returned // a reported failure was taken
)

func (s FinishStatus) String() string {
	switch s {
	case Counted:
		return "counted"
	case AlreadyCounted:
		return "already counted"
	case Stale:
		return "stale"
	case Returned:
		return "returned"
	}
	return fmt.Sprintf("finish(%d)", uint8(s))
}

// Errors of events. The master maps them to what its transports say.
var (
	ErrOtherDataset = errors.New("another dataset was reported first")
	ErrNotAside     = errors.New("task is not set aside")
	ErrDropped      = errors.New("task was dropped")
	ErrNoTrainer    = errors.New("no such trainer")
	ErrJobOver      = errors.New("job has ended")
	ErrTooManyHeld  = errors.New("too many unfinished tasks")

	ErrTooManySessions = errors.New("too many sessions")
)

// Apply is the one transition function: it takes the queue from one state to the
// next and returns the answer. now never goes back; an earlier one is taken as the
// time of the last event.
func (q *Queue) Apply(now Clock, ev Event) Answer {
	q.Advance(now)
	a := ev.apply(q)
	q.final = q.final || a.isFinal()
	return a
}

// Advance sets the job clock; an earlier time changes nothing. The state of a batch has the time of the batch, also without an event that
// is applied: Ready can complete a step.
func (q *Queue) Advance(now Clock) {
	//guard:job-clock-monotonic
	q.clock = max(q.clock, now)
}

// StoreKeys writes keys that other components own in the transaction of its batch. The queue does not read them.
type StoreKeys struct {
	Writes []Write
	Ended  *EndedRound // an evaluation round that ends with them; nil: none
}

func (ev *StoreKeys) apply(q *Queue) Answer {
	q.storeKeys(ev.Writes)
	//guard:strategy-considers-each-round
	if ev.Ended != nil {
		q.steer(ev.Ended)
	}
	return Answer{}
}

func (q *Queue) storeKeys(writes []Write) {
	if len(writes) > 0 {
		q.keys, q.dirty = append(q.keys, writes...), true
	}
}

// Report registers a dataset. The caller has scanned it and stored the parts of its
// table, or found the digest equal to a registered one.
type Report struct {
	SetSpec
	Digest      [32]byte
	ReportID    string
	Parts       int
	PartsDigest [32]byte
	Table       *Table // grouped into tasks
}

func (ev *Report) apply(q *Queue) Answer {
	if err := ev.SetSpec.Validate(); err != nil {
		return Answer{Err: err}
	}
	spec := ev.SetSpec.WithDefaults()
	if s := q.named(spec.Name); s != nil {
		//guard:set-name-is-unique
		if s.digest == ev.Digest && s.kind == spec.Kind {
			return Answer{Set: s.id}
		}
		return Answer{Err: ErrOtherDataset}
	}
	switch {
	case len(q.sets) >= MaxSets:
		return Answer{Err: fmt.Errorf("%w: expected at most %d datasets in a job", ErrBadSet, MaxSets)}
	case q.hasEnded():
		return Answer{Err: fmt.Errorf("%w: it is %s", ErrJobOver, q.status)}
	}
	s := &set{
		id: len(q.sets), name: spec.Name, kind: spec.Kind, passes: Pass(spec.Passes), weight: spec.Weight, digest: ev.Digest, reportID: ev.ReportID, parts: ev.Parts, partsDigest: ev.PartsDigest,
		chunksPerTask: ev.Table.ChunksPerTask(), tasks: ev.Table.Tasks(), chunks: ev.Table.Chunks(),
		seed: spec.Seed, table: ev.Table, byKey: map[liveKey]*entry{}, aside: map[int]*asideTask{},
	}
	switch {
	case spec.Shuffle && spec.Online:
		s.algorithm = orderArrival
	case spec.Shuffle:
		s.algorithm = orderFeistel
	}
	s.online, s.closed = spec.Online, !spec.Online
	q.sets = append(q.sets, s)
	q.dirty = true
	q.ledger.report(s)
	q.raise(Reported{s.id})
	q.notice(false, "dataset registered", map[string]any{"set": s.id, "name": s.name, "kind": s.kind.String(), "tasks": s.tasks, "chunks": s.chunks, "chunks_per_task": s.chunksPerTask})
	q.advance(s)
	return Answer{Set: s.id}
}

// advance closes and opens passes as far as it goes, and ends the job.
func (q *Queue) advance(s *set) {
	for !s.ended && (q.status == Running || q.status == Paused) {
		s.skipAside()
		//guard:pass-of-an-online-dataset-stays-open
		if s.grows() && len(s.open) > 0 {
			break
		}
		//guard:pass-end
		if len(s.open) > 0 && s.open[0].live == 0 && s.open[0].uncommitted == 0 && s.dispatched(s.open[0].pass) == s.tasks {
			q.closePass(s)
			continue
		}
		if s.kind == Evaluation {
			break
		}
		last := q.passes(s) != 0 && s.pass >= q.passes(s)
		if last && len(s.open) == 0 {
			s.ended, q.dirty = true, true
			break
		}
		if last || len(s.open) > 0 && s.cursor < s.tasks || len(s.open) >= q.maxOpen() {
			return
		}
		q.openNext(s)
	}
	if (q.status == Running || q.status == Paused) && q.mayEnd() {
		q.end(Ended, "")
	}
}

// openNext opens the next pass of a dataset.
func (q *Queue) openNext(s *set) {
	s.pass++
	s.cursor = 0
	s.open = append(s.open, openPass{pass: s.pass})
	s.orderOf(s.pass)
	q.dirty = true
	q.ledger.passOpened(s.id, s.pass)
	q.notice(false, "pass started", map[string]any{"set": s.id, "pass": s.pass})
}

func (q *Queue) maxOpen() int {
	//guard:pass-barrier
	if q.opt.Rolling {
		return openPassesRolling
	}
	return 1
}

func (q *Queue) end(status Status, reason string) {
	q.status, q.reason, q.dirty = status, reason, true
	q.ledger.ended(status, reason)
	q.raise(JobEnded{status, reason})
	fields, setAside := map[string]any{}, q.countAside()
	if reason != "" {
		fields["reason"] = reason
	}
	if setAside > 0 {
		fields["set_aside"] = setAside
	}
	q.notice(status == Failed || setAside > 0, "job "+status.String(), fields)
}

// countAside returns the number of tasks that are set aside.
func (q *Queue) countAside() (n int) {
	for _, s := range q.sets {
		n += len(s.aside)
	}
	return n
}

// skipAside moves the cursor over tasks that are set aside.
func (s *set) skipAside() {
	if len(s.aside) == 0 || len(s.open) == 0 {
		return
	}
	o := s.orderOf(s.pass)
	//guard:set-aside-skipped
	for s.cursor < s.tasks && s.aside[o.index(s.cursor)] != nil {
		s.cursor++
	}
}

// closePass closes the oldest open pass and checks its sums.
func (q *Queue) closePass(s *set) {
	p := s.open[0]
	n := uint64(s.tasks)
	want := openPass{pass: p.pass, counted: s.tasks, sum1: sumTo(n), sum2: squaresTo(n)}
	setAside := 0
	for _, a := range s.aside {
		if !a.missing(p.pass) {
			continue
		}
		x := uint64(s.orderOf(p.pass).position(a.index))
		want.counted--
		want.sum1 -= x
		want.sum2 -= x * x
		setAside++
	}
	s.open = s.open[1:]
	q.dirty = true
	//guard:missing-tasks-of-a-round-noted
	q.noteSetAside(s, p.pass)
	q.ledger.passClosed(s.id, p.pass, p.counted, setAside)
	q.raise(PassClosed{s.id, p.pass})
	q.notice(false, "pass ended", map[string]any{"set": s.id, "pass": p.pass, "counted": p.counted, "set_aside": setAside})
	switch {
	case p.counted != want.counted || p.sum1 != want.sum1 || p.sum2 != want.sum2:
		q.end(Failed, fmt.Sprintf("pass %d of dataset %d does not add up: counted %d tasks of %d with %d set aside (sums %d, %d; expected %d, %d); the stored state is damaged",
			p.pass, s.id, p.counted, s.tasks, setAside, p.sum1, p.sum2, want.sum1, want.sum2))
	//guard:evaluation-never-fails-the-job
	case s.kind != Training:
		if p.counted == 0 {
			q.notice(true, "pass counted nothing", map[string]any{"set": s.id, "name": s.name, "pass": p.pass, "set_aside": setAside})
		}
	case s.tasks == 0:
		q.end(Failed, fmt.Sprintf("dataset %d has no tasks: expected at least one chunk in its files", s.id))
	//guard:empty-pass-fails
	case p.counted == 0:
		q.end(Failed, fmt.Sprintf("pass %d of dataset %d counted nothing: all %d tasks are set aside: repair the cause of their last errors, then start a new job", p.pass, s.id, s.tasks))
	}
}

// sumTo is 0 + 1 + ... + (n-1) modulo 2^64.
func sumTo(n uint64) uint64 {
	if n%2 == 0 {
		return n / 2 * (n - 1)
	}
	return (n - 1) / 2 * n
}

// squaresTo is 0 + 1 + 4 + ... + (n-1)^2 = (n-1)n(2n-1)/6 modulo 2^64: the factors 2 and 3
// are divided out before multiplying.
func squaresTo(n uint64) uint64 {
	if n == 0 {
		return 0
	}
	f := [3]uint64{n - 1, n, 2*n - 1}
	for _, d := range []uint64{2, 3} {
		for i := range f {
			if f[i]%d == 0 {
				f[i] /= d
				break
			}
		}
	}
	return f[0] * f[1] * f[2]
}
