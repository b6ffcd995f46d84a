package drill

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"trainmaster/taskqueue"
)

// Entry is the ledger entry of one commit.
type Entry struct {
	Commit uint64
	Events []byte
}

// Ledger reads the ledger of a job up to a commit, in order.
type Ledger func(ctx context.Context, through uint64) iter.Seq2[Entry, error]

// spot is a task of a pass.
type spot struct {
	set      int
	pass     taskqueue.Pass
	position int
}

// holder is a dispatch: the trainer and the attempt.
type holder struct {
	trainer taskqueue.Ordinal
	attempt taskqueue.Attempt
}

// back describes the return of a task from its last holder.
type back struct {
	from taskqueue.Ordinal
	why  string
}

// tracker follows the ledger: the tasks of each trainer and, since the fault, the tasks that were returned and dispatched again.
type tracker struct {
	read    uint64 // commits
	fault   uint64 // the last commit before the fault; 0: before the fault
	names   map[taskqueue.Ordinal]string
	sits    map[taskqueue.Ordinal]bool // sessions that were not replaced and not lost
	held    map[spot][]holder
	watched map[spot]bool // tasks held at the fault and not yet counted or set aside
	pending int           // their number at the fault
	back    map[spot]back
	resent  []Resent
	missed  map[taskqueue.Ordinal]bool // sessions of a killed trainer, until they are lost
}

func newTracker() *tracker {
	return &tracker{names: map[taskqueue.Ordinal]string{}, sits: map[taskqueue.Ordinal]bool{}, held: map[spot][]holder{}, watched: map[spot]bool{}, back: map[spot]back{}, missed: map[taskqueue.Ordinal]bool{}}
}

// follow reads new ledger entries up to a state. The ended passes come from the state, since the ledger may lack entries.
func (l *tracker) follow(ctx context.Context, ledger Ledger, state *taskqueue.Snapshot) error {
	for entry, err := range ledger(ctx, state.Commit) {
		if err != nil {
			return fmt.Errorf("read the ledger: %w", err)
		}
		if entry.Commit <= l.read {
			continue
		}
		for event, err := range taskqueue.LedgerEvents(entry.Events) {
			if err != nil {
				return fmt.Errorf("read commit %d of the ledger: %w", entry.Commit, err)
			}
			l.apply(&event)
		}
		l.read = entry.Commit
	}
	l.read = max(l.read, state.Commit) // commits without events have no entry
	l.close(state.Sets)
	return nil
}

// mark records the time of the fault, and the trainer that it kills; empty: none.
func (l *tracker) mark(killed string) {
	l.fault = l.read
	for ordinal, id := range l.names {
		if id == killed && l.sits[ordinal] {
			l.missed[ordinal] = true
		}
	}
	for at, holders := range l.held {
		if len(holders) > 0 {
			l.watched[at] = true
		}
	}
	l.pending = len(l.watched)
}

func (l *tracker) apply(e *taskqueue.LedgerEvent) {
	at := spot{e.Set, e.Pass, e.Position}
	switch e.Kind {
	case taskqueue.EventJoined:
		for ordinal := range l.sits {
			if l.names[ordinal] == e.ID { // the new session replaces it
				l.leave(ordinal)
			}
		}
		l.names[e.Trainer], l.sits[e.Trainer] = e.ID, true
	case taskqueue.EventLost, taskqueue.EventLeft:
		l.leave(e.Trainer)
	case taskqueue.EventDispatched:
		l.held[at] = append(l.held[at], holder{e.Trainer, e.Attempt})
		if came, ok := l.back[at]; ok {
			delete(l.back, at)
			l.resent = append(l.resent, Resent{
				Dataset: at.set, Pass: uint32(at.pass), Position: at.position, Attempt: uint32(e.Attempt),
				From: l.name(came.from), To: l.name(e.Trainer), Why: came.why,
			})
		}
	case taskqueue.EventFinished, taskqueue.EventSetAside:
		delete(l.held, at)
		delete(l.back, at)
		delete(l.watched, at)
	case taskqueue.EventReturned:
		l.gone(at, e, "returned")
	case taskqueue.EventFailed:
		l.gone(at, e, "failed")
	case taskqueue.EventTimedOut:
		l.gone(at, e, "timed out")
	}
}

// leave ends a session.
func (l *tracker) leave(o taskqueue.Ordinal) {
	delete(l.sits, o)
	delete(l.missed, o)
}

// gone records the return of a task from a holder.
func (l *tracker) gone(at spot, e *taskqueue.LedgerEvent, why string) {
	l.held[at] = slices.DeleteFunc(l.held[at], func(h holder) bool { return h.attempt == e.Attempt })
	if l.fault > 0 {
		l.back[at] = back{e.Trainer, why}
	}
}

// close removes the ended passes: all their tasks are counted or set aside.
func (l *tracker) close(sets []taskqueue.SetSnapshot) {
	closed := func(at spot) bool {
		return at.set >= len(sets) || !slices.ContainsFunc(sets[at.set].Open, func(p taskqueue.OpenPass) bool { return p.Pass == at.pass })
	}
	maps.DeleteFunc(l.watched, func(at spot, _ bool) bool { return closed(at) })
	maps.DeleteFunc(l.held, func(at spot, _ []holder) bool { return closed(at) })
	maps.DeleteFunc(l.back, func(at spot, _ back) bool { return closed(at) })
}

// allCounted reports whether the session of the killed trainer has ended, and all tasks that were held at the fault, or returned since,
// are counted or set aside.
func (l *tracker) allCounted() bool { return len(l.missed)+len(l.watched)+len(l.back) == 0 }

// holds counts the tasks of a trainer.
func (l *tracker) holds(id string) (n int) {
	for _, holders := range l.held {
		for _, h := range holders {
			if l.names[h.trainer] == id {
				n++
			}
		}
	}
	return n
}

func (l *tracker) name(o taskqueue.Ordinal) string {
	if id := l.names[o]; id != "" {
		return id
	}
	return fmt.Sprintf("trainer number %d", o)
}
