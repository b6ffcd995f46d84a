package taskqueue

import (
	"cmp"
	"fmt"
	"slices"
)

// Moment is when something happened: in which commit, and when that was made by the wall
// clock of the master (milliseconds since 1970; 0: not known).
type Moment struct {
	Commit uint64
	At     int64
}

// Delivery is one dispatch of a task and its outcome.
type Delivery struct {
	Attempt    Attempt
	Trainer    Ordinal   // 0: unknown
	Dispatched Moment    // commit 0: in a deleted part of the ledger
	Outcome    EventKind // EventFinished, EventReturned, EventFailed, EventTimedOut; 0: not ended
	Settled    Moment    // time of the outcome
	Step       uint64    // of EventApplied, which is EventFinished once its step is committed
}

// TracedPass is the history of a task in one pass.
type TracedPass struct {
	Pass       Pass
	Deliveries []Delivery // by attempt
	SetAside   Moment     // commit 0: it was not
	Abandoned  bool       // the pass has ended without the task: see EventAbandoned
}

// Counted returns the delivery that was counted, or nil.
func (p *TracedPass) Counted() *Delivery {
	for i := range p.Deliveries {
		if p.Deliveries[i].Outcome == EventFinished {
			return &p.Deliveries[i]
		}
	}
	return nil
}

// Tracer follows one task through the ledger: feed it the commits in order.
type Tracer struct {
	set, index int
	known      bool // the set was reported
	outline    SetOutline
	passes     []TracedPass
	at         map[Pass]int // the position of the task in each pass
	sets       int          // reported so far
	names      map[Ordinal]string
}

// NewTracer returns a tracer of a task of a dataset in a ledger that is read on from an
// outline.
func NewTracer(set, index int, from Outline) *Tracer {
	t := &Tracer{set: set, index: index, at: map[Pass]int{}, sets: len(from.Sets), names: map[Ordinal]string{}}
	if set < len(from.Sets) {
		t.outline, t.known = from.Sets[set], true
	}
	return t
}

// Passes returns the history of the task, by pass.
func (t *Tracer) Passes() []TracedPass { return t.passes }

// Name returns the id of a trainer; ok is false when it joined in a part of the ledger that
// is not kept.
func (t *Tracer) Name(o Ordinal) (id string, ok bool) {
	id, ok = t.names[o]
	return id, ok
}

// Add takes the events of one commit.
func (t *Tracer) Add(commit uint64, value []byte) error {
	now := Moment{Commit: commit}
	for ev, err := range LedgerEvents(value) {
		if err != nil {
			return fmt.Errorf("commit %d: %w", commit, err)
		}
		switch ev.Kind {
		case EventStamped:
			now.At = ev.At
		case EventJoined:
			t.names[ev.Trainer] = ev.ID
		case EventReported:
			if t.sets == t.set {
				t.outline, t.known = SetOutline{Tasks: ev.Tasks, Algorithm: ev.Algorithm, Seed: ev.Seed}, true
			}
			t.sets++
		case EventAbandoned:
			if i, ok := t.find(ev.Pass); ok && ev.Set == t.set {
				t.passes[i].Abandoned = t.passes[i].Counted() == nil && t.passes[i].SetAside.Commit == 0
			}
		case EventAppended:
			if ev.Set == t.set {
				t.outline.Tasks += ev.Tasks
			}
		case EventCommitted, EventRolledBack:
			t.steps(&ev, now)
		case EventDispatched, EventFinished, EventApplied, EventReturned, EventFailed, EventTimedOut, EventSetAside:
			if t.concerns(&ev) {
				t.take(&ev, now)
			}
		}
	}
	return nil
}

// steps counts deliveries whose step was committed; deliveries that were rolled back have no effect.
func (t *Tracer) steps(ev *LedgerEvent, now Moment) {
	for i := range t.passes {
		for k := range t.passes[i].Deliveries {
			d := &t.passes[i].Deliveries[k]
			switch {
			case d.Outcome != EventApplied:
			case ev.Kind == EventRolledBack:
				d.Outcome, d.Settled = EventReturned, now
			case d.Step <= ev.Step:
				d.Outcome, d.Settled = EventFinished, now
			}
		}
	}
}

// concerns reports whether an event is about the traced task.
func (t *Tracer) concerns(ev *LedgerEvent) bool {
	if ev.Set != t.set || !t.known || t.index >= t.outline.Tasks {
		return false
	}
	at, ok := t.at[ev.Pass]
	if !ok {
		o := newOrder(t.outline.Algorithm, t.outline.Seed, ev.Pass, t.outline.Tasks)
		at = o.position(t.index)
		t.at[ev.Pass] = at
	}
	return ev.Position == at
}

func (t *Tracer) find(pass Pass) (int, bool) {
	return slices.BinarySearchFunc(t.passes, pass, func(p TracedPass, pass Pass) int { return cmp.Compare(p.Pass, pass) })
}

func (t *Tracer) take(ev *LedgerEvent, now Moment) {
	i, ok := t.find(ev.Pass)
	if !ok {
		t.passes = slices.Insert(t.passes, i, TracedPass{Pass: ev.Pass})
	}
	p := &t.passes[i]
	if ev.Kind == EventSetAside {
		p.SetAside = now
		return
	}
	k, ok := slices.BinarySearchFunc(p.Deliveries, ev.Attempt, func(d Delivery, a Attempt) int { return cmp.Compare(d.Attempt, a) })
	if !ok {
		p.Deliveries = slices.Insert(p.Deliveries, k, Delivery{Attempt: ev.Attempt, Trainer: ev.Trainer})
	}
	d := &p.Deliveries[k]
	if ev.Kind == EventDispatched {
		d.Dispatched = now
		return
	}
	d.Outcome, d.Settled, d.Step = ev.Kind, now, ev.Step
	if ev.Kind == EventFinished {
		p.SetAside = Moment{} // a late finish takes it back
	}
}
