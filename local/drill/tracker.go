package drill

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"trainmaster/taskqueue"
)

// Entry is what one commit wrote into the ledger.
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

// holder is a dispatch: to whom, and which.
type holder struct {
	trainer taskqueue.Ordinal
	attempt taskqueue.Attempt
}

// back is how a task came back from its last holder.
type back struct {
	from taskqueue.Ordinal
	why  string
}

// tracker follows the ledger: who holds what, and since the fault, what came back and went out again.
type tracker struct {
	read    uint64 // commits
	fault   uint64 // the last commit before the fault; 0: it has not come yet
	names   map[taskqueue.Ordinal]string
	sits    map[taskqueue.Ordinal]bool // sessions that nobody took the place of, and that were not lost
	held    map[spot][]holder
	watched map[spot]bool // held at the fault, and not yet counted or set aside
	pending int           // as many they were
	back    map[spot]back
	resent  []Resent
	missed  map[taskqueue.Ordinal]bool // sessions of a killed trainer, until the job knows
}

func newTracker() *tracker {
	return &tracker{names: map[taskqueue.Ordinal]string{}, sits: map[taskqueue.Ordinal]bool{}, held: map[spot][]holder{}, watched: map[spot]bool{}, back: map[spot]back{}, missed: map[taskqueue.Ordinal]bool{}}
}

// follow reads what is new up to a state. Which passes are over, the state says: a ledger that lacks something may not.
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
	l.read = max(l.read, state.Commit) // commits without events are not there
	l.close(state.Sets)
	return nil
}

// mark says that the fault comes now, and which trainer it kills; empty: none.
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
			if l.names[ordinal] == e.ID { // the new session takes its place
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

// gone takes a task back from a holder.
func (l *tracker) gone(at spot, e *taskqueue.LedgerEvent, why string) {
	l.held[at] = slices.DeleteFunc(l.held[at], func(h holder) bool { return h.attempt == e.Attempt })
	if l.fault > 0 {
		l.back[at] = back{e.Trainer, why}
	}
}

// close forgets the passes that are not open: all of them is counted or set aside.
func (l *tracker) close(sets []taskqueue.SetSnapshot) {
	over := func(at spot) bool {
		return at.set >= len(sets) || !slices.ContainsFunc(sets[at.set].Open, func(p taskqueue.OpenPass) bool { return p.Pass == at.pass })
	}
	maps.DeleteFunc(l.watched, func(at spot, _ bool) bool { return over(at) })
	maps.DeleteFunc(l.held, func(at spot, _ []holder) bool { return over(at) })
	maps.DeleteFunc(l.back, func(at spot, _ back) bool { return over(at) })
}

// settled reports whether the job knows who was killed, and everything that was held at the fault, or came back since, is
// counted or set aside.
func (l *tracker) settled() bool { return len(l.missed)+len(l.watched)+len(l.back) == 0 }

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
