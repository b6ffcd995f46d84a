package taskqueue

import "fmt"

// PassReport reports the outcome of the tasks of one pass, by the ledger alone. In a closed pass every task is counted once,
// set aside or missing, and no task is counted twice; missing and counted_twice are 0 or the guarantee is broken. The tasks of
// an open pass that are neither are still to be done.
type PassReport struct {
	Set          int  `json:"set"`
	Pass         Pass `json:"pass"`
	Tasks        int  `json:"tasks"`
	CountedOnce  int  `json:"counted_once"`
	SetAside     int  `json:"set_aside"`
	Dropped      int  `json:"dropped"`     // of SetAside: an operator gave them up
	Redelivered  int  `json:"redelivered"` // dispatches beyond the first of each task
	Abandoned    int  `json:"abandoned"`   // of a round of one trainer that ended early: tasks without a result
	Missing      int  `json:"missing"`
	CountedTwice int  `json:"counted_twice"`

	// Unseen says that the pass, or the beginning of it, is in a part of the ledger that is
	// not kept any more. Then nothing is known of it but its number of tasks.
	Unseen bool `json:"unseen"`
}

// Verifier proves the guarantee from the ledger: feed it the commits in order. It keeps
// its own books, a bit for each task that an open pass dispatched or finished, and trusts
// no sum that the queue wrote.
type Verifier struct {
	last     uint64
	sets     []*verifiedSet
	status   Status
	paused   bool
	draining map[Ordinal]bool
	step     uint64 // the last committed one
}

type verifiedSet struct {
	tasks     int
	kind      Kind
	algorithm uint8
	seed      uint64
	online    bool
	grows     bool         // online and not closed
	pass      Pass         // the newest
	aside     map[int]Pass // task index -> the first pass that goes without it
	dropped   map[int]bool // of aside
	open      []*verifiedPass
	closed    []PassReport
}

type verifiedPass struct {
	report      PassReport // unseen: its beginning was not
	order       order
	dispatched  bitmap
	finished    bitmap
	twice       bitmap
	uncommitted map[int]uint64 // finished and not committed: position -> step
	aside       map[int]bool   // positions that were dispatched and then set aside
	sum1, sum2  uint64         // over the finished positions
}

// NewVerifier returns a verifier that has seen nothing yet.
func NewVerifier() *Verifier { return &Verifier{draining: map[Ordinal]bool{}} }

// Add takes the events of one commit. Commits must come in rising order; commits without events have no ledger entry. An error
// wraps ErrBadLedger if the value does not decode, or if its events are impossible, as after the loss of an earlier commit.
func (v *Verifier) Add(commit uint64, value []byte) error {
	if commit <= v.last {
		return fmt.Errorf("%w: commit %d after commit %d", ErrBadLedger, commit, v.last)
	}
	for ev, err := range LedgerEvents(value) {
		if err == nil {
			err = v.event(&ev)
		}
		if err != nil {
			return fmt.Errorf("commit %d: %w", commit, err)
		}
	}
	v.last = commit
	return nil
}

// Last returns the number of the last commit that was added.
func (v *Verifier) Last() uint64 { return v.last }

func impossible(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrBadLedger}, args...)...)
}

func (v *Verifier) event(ev *LedgerEvent) error {
	switch ev.Kind {
	case EventJoined, EventStamped, EventRated:
		return nil
	case EventLost, EventLeft: // its ordinal is never given again
		delete(v.draining, ev.Trainer)
		return nil
	case EventPaused, EventResumed:
		v.paused = ev.Kind == EventPaused
		return nil
	case EventDraining:
		v.draining[ev.Trainer] = true
		return nil
	case EventDispatched:
		if v.paused || v.draining[ev.Trainer] {
			return impossible("position %d of pass %d dispatched to trainer %d while the job is paused or the trainer drains", ev.Position, ev.Pass, ev.Trainer)
		}
	case EventCommitted, EventRolledBack:
		return v.steps(ev)
	case EventEnded:
		v.status = ev.Status
		return nil
	case EventReported:
		if ev.Set != len(v.sets) || ev.Tasks < 0 || ev.Tasks > maxTasks || ev.Algorithm > orderArrival || ev.Algorithm == orderArrival && !ev.Online {
			return impossible("dataset %d of %d tasks, order %d, reported after %d others", ev.Set, ev.Tasks, ev.Algorithm, len(v.sets))
		}
		v.sets = append(v.sets, &verifiedSet{tasks: ev.Tasks, kind: ev.Purpose, algorithm: ev.Algorithm, seed: ev.Seed, online: ev.Online, grows: ev.Online, aside: map[int]Pass{}, dropped: map[int]bool{}})
		return nil
	}
	if ev.Set < 0 || ev.Set >= len(v.sets) {
		return impossible("dataset %d of %d", ev.Set, len(v.sets))
	}
	s := v.sets[ev.Set]
	switch ev.Kind {
	case EventRetried:
		if s.aside[ev.Index] == 0 {
			return impossible("task %d retried, which was not set aside", ev.Index)
		}
		if s.dropped[ev.Index] {
			return impossible("task %d retried, which was dropped", ev.Index)
		}
		s.leaveAside(ev.Index)
		return nil
	case EventDropped:
		if s.aside[ev.Index] == 0 || s.dropped[ev.Index] {
			return impossible("task %d dropped, which was not set aside or dropped before", ev.Index)
		}
		s.dropped[ev.Index] = true
		return nil
	case EventWeighted:
		return nil
	case EventAppended:
		return s.appended(ev)
	case EventClosed:
		if !s.grows {
			return impossible("dataset %d closed, which is not online or was closed before", ev.Set)
		}
		s.grows = false
		return nil
	case EventPassOpened:
		return s.openPass(ev)
	}
	p := s.find(ev.Pass)
	if p == nil {
		return impossible("event %d in pass %d, which is not open", ev.Kind, ev.Pass)
	}
	if ev.Kind == EventPassClosed || ev.Kind == EventAbandoned {
		return s.closePass(p, ev.Kind == EventAbandoned)
	}
	if ev.Position < 0 || ev.Position >= s.tasks {
		return impossible("position %d of %d tasks", ev.Position, s.tasks)
	}
	if p.report.Unseen && ev.Kind != EventFinished && ev.Kind != EventApplied && ev.Kind != EventSetAside {
		return nil
	}
	if ev.Kind == EventDispatched {
		if p.dispatched.set(ev.Position) {
			p.report.Redelivered++
		}
		return nil
	}
	if !p.report.Unseen && !p.dispatched.has(ev.Position) {
		return impossible("event %d for position %d of pass %d, which was never dispatched", ev.Kind, ev.Position, ev.Pass)
	}
	switch ev.Kind {
	case EventApplied:
		if p.uncommitted[ev.Position] != 0 || ev.Step <= v.step {
			return impossible("position %d of pass %d finished in step %d, after one in step %d and the commit of step %d", ev.Position, ev.Pass, ev.Step, p.uncommitted[ev.Position], v.step)
		}
		p.uncommitted[ev.Position] = ev.Step
	case EventFinished:
		s.finish(p, ev.Position)
	case EventSetAside:
		if index := p.order.index(ev.Position); index != ev.Index {
			return impossible("position %d of pass %d set aside as task %d: it is task %d", ev.Position, ev.Pass, ev.Index, index)
		}
		if since := s.aside[ev.Index]; since == 0 || ev.Pass < since {
			s.aside[ev.Index] = ev.Pass
		}
		p.aside[ev.Position] = true
	}
	return nil
}

// steps counts what a committed step has, or forgets what a rollback has not.
func (v *Verifier) steps(ev *LedgerEvent) error {
	if ev.Kind == EventCommitted && ev.Step <= v.step || ev.Kind == EventRolledBack && ev.Step != v.step {
		return impossible("event %d of step %d after the commit of step %d", ev.Kind, ev.Step, v.step)
	}
	v.step = ev.Step
	for _, s := range v.sets {
		for _, p := range s.open {
			for position, step := range p.uncommitted {
				switch {
				case ev.Kind == EventRolledBack:
					delete(p.uncommitted, position)
				case step <= v.step:
					delete(p.uncommitted, position)
					s.finish(p, position)
				}
			}
		}
	}
	return nil
}

func (s *verifiedSet) leaveAside(index int) {
	delete(s.aside, index)
	for _, p := range s.open {
		delete(p.aside, p.order.position(index))
	}
}

func (s *verifiedSet) find(p Pass) *verifiedPass {
	for _, o := range s.open {
		if o.report.Pass == p {
			return o
		}
	}
	return nil
}

func (s *verifiedSet) openPass(ev *LedgerEvent) error {
	if ev.Pass != s.pass+1 {
		return impossible("pass %d opened after pass %d", ev.Pass, s.pass)
	}
	s.pass++
	s.open = append(s.open, &verifiedPass{
		report: PassReport{Set: ev.Set, Pass: ev.Pass, Tasks: s.tasks},
		order:  newOrder(s.algorithm, s.seed, ev.Pass, s.tasks),
		aside:  map[int]bool{}, uncommitted: map[int]uint64{},
	})
	return nil
}

// appended adds tasks to the dataset and to its open pass.
func (s *verifiedSet) appended(ev *LedgerEvent) error {
	if !s.grows || ev.Tasks < 1 || ev.Tasks > maxTasks-s.tasks {
		return impossible("%d tasks appended to the %d of dataset %d, which grows: %t", ev.Tasks, s.tasks, ev.Set, s.grows)
	}
	s.tasks += ev.Tasks
	for _, p := range s.open {
		p.report.Tasks = s.tasks
	}
	return nil
}

func (s *verifiedSet) finish(p *verifiedPass, position int) {
	if !p.report.Unseen {
		if p.finished.set(position) {
			p.twice.set(position)
			return
		}
		p.sum1 += uint64(position)
		p.sum2 += uint64(position) * uint64(position)
	}
	// A late finish takes a task out of the list, unless an older pass set it aside.
	if index := p.order.index(position); s.aside[index] == p.report.Pass {
		s.leaveAside(index)
	}
}

func (s *verifiedSet) closePass(p *verifiedPass, abandoned bool) error {
	//guard:training-pass-not-abandoned
	if abandoned && s.kind != Evaluation {
		return impossible("pass %d of a dataset for %s abandoned", p.report.Pass, s.kind)
	}
	if s.open[0] != p {
		return impossible("pass %d closed before pass %d", p.report.Pass, s.open[0].report.Pass)
	}
	if s.grows {
		return impossible("pass %d closed before its dataset, which is online", p.report.Pass)
	}
	r := s.report(p)
	if !r.Unseen {
		r.Missing = r.Tasks - r.CountedOnce - r.CountedTwice - r.SetAside
	}
	if abandoned {
		r.Missing, r.Abandoned = 0, r.Missing
	}
	s.closed = append(s.closed, r)
	s.open = s.open[1:]
	return nil
}

// report is what stands now of an open pass.
func (s *verifiedSet) report(p *verifiedPass) PassReport {
	r := p.report
	if r.Unseen {
		return r
	}
	r.CountedTwice = p.twice.n
	r.CountedOnce = p.finished.n - p.twice.n
	for index, since := range s.aside {
		position := p.order.position(index)
		skipped := p.aside[position] || !p.dispatched.has(position) // else it was spared, and continues
		if since <= r.Pass && skipped && !p.finished.has(position) {
			r.SetAside++
			if s.dropped[index] {
				r.Dropped++
			}
		}
	}
	return r
}

// Report returns the outcome of each pass, closed and open, by dataset and pass.
func (v *Verifier) Report() []PassReport {
	var list []PassReport
	for _, s := range v.sets {
		list = append(list, s.closed...)
		for _, p := range s.open {
			list = append(list, s.report(p))
		}
	}
	return list
}

// CrossCheck compares the ledger with the stored state of the same revision: the tasks that the ledger counted, dispatched and
// set aside must match the state.
func (v *Verifier) CrossCheck(state *Snapshot) error {
	if v.last > state.Commit {
		return fmt.Errorf("expected a state of commit %d or later, as in the ledger, found commit %d", v.last, state.Commit)
	}
	q, err := Restore(state, nil, make([]*Table, len(state.Sets)), AsStored)
	if err != nil {
		return err
	}
	if q.explicit != nil && q.explicit.committed != v.step {
		return fmt.Errorf("last committed step: found %d in the ledger, %d in the state", v.step, q.explicit.committed)
	}
	if len(q.sets) != len(v.sets) {
		return fmt.Errorf("expected %d datasets as in the ledger, found %d in the state", len(v.sets), len(q.sets))
	}
	if ended := q.status == Ended || q.status == Failed; ended != (v.status != Running) || ended && q.status != v.status {
		return fmt.Errorf("status: found %s in the ledger, %s in the state", v.status, q.status)
	}
	for i, s := range v.sets {
		if err := s.crossCheck(q.sets[i]); err != nil {
			return fmt.Errorf("dataset %d: %w", i, err)
		}
	}
	return nil
}

func (s *verifiedSet) crossCheck(state *set) error {
	if s.online != state.online || s.grows != state.grows() {
		return fmt.Errorf("online and open to appends: %t and %t in the ledger, %t and %t in the state", s.online, s.grows, state.online, state.grows())
	}
	if s.tasks != state.tasks || s.algorithm != state.algorithm || s.seed != state.seed || s.pass != state.pass || len(s.open) != len(state.open) {
		return fmt.Errorf("ledger: %d tasks, order %d, seed %d, pass %d, %d open; state: %d tasks, order %d, seed %d, pass %d, %d open",
			s.tasks, s.algorithm, s.seed, s.pass, len(s.open), state.tasks, state.algorithm, state.seed, state.pass, len(state.open))
	}
	for i, p := range s.open {
		o := state.open[i]
		if o.pass == p.report.Pass && p.report.Unseen {
			continue
		}
		if o.pass == p.report.Pass && o.uncommitted != len(p.uncommitted) {
			return fmt.Errorf("pass %d: uncommitted finishes: found %d in the ledger, %d in the state", o.pass, len(p.uncommitted), o.uncommitted)
		}
		if o.pass != p.report.Pass || o.counted != p.finished.n || o.sum1 != p.sum1 || o.sum2 != p.sum2 {
			return fmt.Errorf("ledger: pass %d, %d counted, sums %d, %d; state: pass %d, %d counted, sums %d, %d",
				p.report.Pass, p.finished.n, p.sum1, p.sum2, o.pass, o.counted, o.sum1, o.sum2)
		}
	}
	if len(s.aside) != len(state.aside) {
		return fmt.Errorf("expected %d tasks set aside as in the ledger, found %d in the state", len(s.aside), len(state.aside))
	}
	for index, since := range s.aside {
		if a := state.aside[index]; a == nil || a.pass != since {
			return fmt.Errorf("task %d: set aside since pass %d in the ledger, not in the state", index, since)
		} else if a.dropped != s.dropped[index] {
			return fmt.Errorf("task %d: dropped is %t in the ledger, %t in the state", index, s.dropped[index], a.dropped)
		}
	}
	for _, a := range state.uncommitted {
		if p := s.find(a.pass); !p.report.Unseen && p.uncommitted[a.position] != a.step {
			return fmt.Errorf("position %d of pass %d: waits for the commit of step %d in the state, of step %d in the ledger (0: none)", a.position, a.pass, a.step, p.uncommitted[a.position])
		}
	}
	for _, e := range state.live {
		p := s.find(e.pass)
		if p.report.Unseen {
			continue
		}
		if p.finished.has(e.position) || e.holderCount > 0 && !p.dispatched.has(e.position) {
			return fmt.Errorf("position %d of pass %d: live in the state, not in the ledger", e.position, e.pass)
		}
	}
	return nil
}

// bitmap is a set of positions in pages, so that a damaged position costs no more than a
// page.
type bitmap struct {
	n     int
	pages map[int]*[pageWords]uint64
}

const pageWords = 512

// set adds i and reports whether it was in the set before.
func (b *bitmap) set(i int) (was bool) {
	page := b.pages[i/(64*pageWords)]
	if page == nil {
		if b.pages == nil {
			b.pages = map[int]*[pageWords]uint64{}
		}
		page = new([pageWords]uint64)
		b.pages[i/(64*pageWords)] = page
	}
	word, bit := &page[i/64%pageWords], uint64(1)<<(i%64)
	was = *word&bit != 0
	*word |= bit
	if !was {
		b.n++
	}
	return was
}

func (b *bitmap) has(i int) bool {
	page := b.pages[i/(64*pageWords)]
	return page != nil && page[i/64%pageWords]&(1<<(i%64)) != 0
}
