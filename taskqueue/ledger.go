package taskqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"
)

// EventKind is the kind of one event in the ledger.
type EventKind uint8

// The kinds of events in the ledger. The numbers are part of the stored format.
const (
	EventReported   EventKind = 1
	EventPassOpened EventKind = 2
	EventPassClosed EventKind = 3
	EventDispatched EventKind = 4
	EventFinished   EventKind = 5
	EventReturned   EventKind = 6 // uncharged, or with a lost trainer
	EventFailed     EventKind = 7
	EventTimedOut   EventKind = 8
	EventSetAside   EventKind = 9
	EventRetried    EventKind = 10
	EventJoined     EventKind = 11
	EventLost       EventKind = 12
	EventEnded      EventKind = 13
	EventPaused     EventKind = 14
	EventResumed    EventKind = 15
	EventDraining   EventKind = 16
	EventDropped    EventKind = 17
	EventStamped    EventKind = 18 // first event of a commit: its time
	EventApplied    EventKind = 19 // finished with explicit commits: counts with its step
	EventCommitted  EventKind = 20 // a committed step: its records count
	EventPartly     EventKind = 21 // a task whose first records are in the committed step
	EventRolledBack EventKind = 22 // rollback to a step: later records are trained again
	EventLeft       EventKind = 23 // the session of a draining trainer has ended
	EventRated      EventKind = 24 // another learning rate of the parameter servers
	EventWeighted   EventKind = 25 // another weight of a dataset
	EventAbandoned  EventKind = 26 // a round of a trainer has ended before its last task: a pass without the remaining tasks
	EventAppended   EventKind = 27 // tasks were added to an online dataset
	EventClosed     EventKind = 28 // an online dataset takes no more tasks
)

// Ledger flags, in the kind byte.
const (
	flagSamePass     = 0x80 // set and pass are as in the event before, in the same commit
	flagFirstAttempt = 0x40
	kindMask         = 0x3f
	ledgerVersion    = 4
)

// LedgerEvent is one event of the ledger, decoded. Which fields are set depends on Kind.
type LedgerEvent struct {
	Kind        EventKind
	Set         int
	Pass        Pass
	Position    int
	Attempt     Attempt
	Trainer     Ordinal // 0: unknown
	Incarnation uint64
	ID          string // of a trainer, or of a report
	Tasks       int
	Chunks      int
	Algorithm   uint8
	Seed        uint64
	Purpose     Kind // of a dataset
	Passes      Pass // 0: the default of its kind
	Weight      int
	Name        string
	Online      bool
	Counted     int
	SetAside    int
	Index       int // of a task
	Status      Status
	Reason      string
	Step        uint64
	Generation  uint64
	Epoch       uint32
	Records     int64
	At          int64 // milliseconds since 1970 by the master's wall clock
	Rate        RateChange
}

// ledgerWriter gathers the events of one commit: a version byte, then per event a kind byte with flags and varints. A position
// is the signed distance to the previous position. In version 1, the report of a dataset has no kind, passes, weight and name. Until
// version 3, it has no online flag.
type ledgerWriter struct {
	buf      []byte
	set      int
	pass     Pass
	position int
	some     bool
}

func (w *ledgerWriter) take() []byte {
	b := w.buf
	*w = ledgerWriter{}
	return b
}

func (w *ledgerWriter) kind(k EventKind, flags uint8) {
	if len(w.buf) == 0 {
		w.buf = append(w.buf, ledgerVersion)
	}
	w.buf = append(w.buf, uint8(k)|flags)
}

func (w *ledgerWriter) uint(v uint64) { w.buf = binary.AppendUvarint(w.buf, v) }

func (w *ledgerWriter) text(s string) {
	w.uint(uint64(len(s)))
	w.buf = append(w.buf, s...)
}

// taskHeader writes the head of an event that concerns one dispatch.
func (w *ledgerWriter) taskHeader(k EventKind, set int, pass Pass, position int, attempt Attempt) {
	var flags uint8
	same := w.some && w.set == set && w.pass == pass
	if same {
		flags |= flagSamePass
	}
	if attempt == 1 {
		flags |= flagFirstAttempt
	}
	w.kind(k, flags)
	if !same {
		w.uint(uint64(set))
		w.uint(uint64(pass))
	}
	w.buf = binary.AppendVarint(w.buf, int64(position-w.position))
	if attempt != 1 {
		w.uint(uint64(attempt))
	}
	w.set, w.pass, w.position, w.some = set, pass, position, true
}

func (w *ledgerWriter) report(s *set) {
	w.kind(EventReported, 0)
	w.uint(uint64(s.id))
	w.uint(uint64(s.tasks))
	w.uint(uint64(s.chunks))
	w.uint(uint64(s.algorithm))
	w.uint(s.seed)
	w.text(s.reportID)
	w.uint(uint64(s.kind))
	w.uint(uint64(s.passes))
	w.uint(uint64(s.weight))
	w.text(s.name)
	online := uint64(0)
	if s.online {
		online = 1
	}
	w.uint(online)
}

func (w *ledgerWriter) appended(set, tasks, chunks int) {
	w.kind(EventAppended, 0)
	w.uint(uint64(set))
	w.uint(uint64(tasks))
	w.uint(uint64(chunks))
}

func (w *ledgerWriter) closed(set int) {
	w.kind(EventClosed, 0)
	w.uint(uint64(set))
}

func (w *ledgerWriter) passOpened(set int, p Pass) {
	w.kind(EventPassOpened, 0)
	w.uint(uint64(set))
	w.uint(uint64(p))
}

func (w *ledgerWriter) passClosed(set int, p Pass, counted, setAside int) {
	w.kind(EventPassClosed, 0)
	w.uint(uint64(set))
	w.uint(uint64(p))
	w.uint(uint64(counted))
	w.uint(uint64(setAside))
}

func (w *ledgerWriter) passAbandoned(set int, p Pass) {
	w.kind(EventAbandoned, 0)
	w.uint(uint64(set))
	w.uint(uint64(p))
}

func (w *ledgerWriter) attemptEvent(k EventKind, e *entry, o Ordinal, attempt Attempt) {
	w.taskHeader(k, e.set.id, e.pass, e.position, attempt)
	w.uint(uint64(o))
}

func (w *ledgerWriter) dispatched(e *entry, o Ordinal, a Attempt) {
	w.attemptEvent(EventDispatched, e, o, a)
}
func (w *ledgerWriter) returned(e *entry, o Ordinal, a Attempt) {
	w.attemptEvent(EventReturned, e, o, a)
}
func (w *ledgerWriter) failed(e *entry, o Ordinal, a Attempt) { w.attemptEvent(EventFailed, e, o, a) }
func (w *ledgerWriter) timedOut(e *entry, o Ordinal, a Attempt) {
	w.attemptEvent(EventTimedOut, e, o, a)
}

// finished writes a finish; one with a step is to be counted with it.
func (w *ledgerWriter) finished(set int, tok Token, by *trainer, step uint64) {
	kind := EventFinished
	if step != 0 {
		kind = EventApplied
	}
	w.taskHeader(kind, set, tok.Pass, tok.Position, tok.Attempt)
	ordinal := Ordinal(0)
	if by != nil {
		ordinal = by.ordinal
	}
	w.uint(uint64(ordinal))
	if step != 0 {
		w.uint(step)
	}
}

func (w *ledgerWriter) committed(step, generation uint64) {
	w.kind(EventCommitted, 0)
	w.uint(step)
	w.uint(generation)
}

func (w *ledgerWriter) rolledBack(step, generation uint64, epoch uint32) {
	w.kind(EventRolledBack, 0)
	w.uint(step)
	w.uint(generation)
	w.uint(uint64(epoch))
}

func (w *ledgerWriter) partly(set int, k liveKey, last Attempt, base int64) {
	w.taskHeader(EventPartly, set, k.pass, k.position, last)
	w.uint(uint64(base))
}

func (w *ledgerWriter) setAside(e *entry, index int) {
	w.taskHeader(EventSetAside, e.set.id, e.pass, e.position, e.next-1)
	w.uint(uint64(index))
}

func (w *ledgerWriter) retried(set, index int) {
	w.kind(EventRetried, 0)
	w.uint(uint64(set))
	w.uint(uint64(index))
}

func (w *ledgerWriter) joined(t *trainer) {
	w.kind(EventJoined, 0)
	w.uint(uint64(t.ordinal))
	w.uint(t.incarnation)
	w.text(t.id)
}

func (w *ledgerWriter) lost(t *trainer) {
	w.kind(EventLost, 0)
	w.uint(uint64(t.ordinal))
}

func (w *ledgerWriter) ended(s Status, reason string) {
	w.kind(EventEnded, 0)
	w.uint(uint64(s))
	w.text(reason)
}

func (w *ledgerWriter) paused(reason string) {
	w.kind(EventPaused, 0)
	w.text(reason)
}

func (w *ledgerWriter) resumed() { w.kind(EventResumed, 0) }

func (w *ledgerWriter) draining(t *trainer) {
	w.kind(EventDraining, 0)
	w.uint(uint64(t.ordinal))
}

func (w *ledgerWriter) left(t *trainer) {
	w.kind(EventLeft, 0)
	w.uint(uint64(t.ordinal))
}

func (w *ledgerWriter) dropped(set, index int) {
	w.kind(EventDropped, 0)
	w.uint(uint64(set))
	w.uint(uint64(index))
}

func (w *ledgerWriter) rated(r RateChange) {
	w.kind(EventRated, 0)
	w.uint(r.Number)
	w.uint(r.From)
	w.uint(uint64(math.Float32bits(r.Scale)))
	w.uint(uint64(math.Float32bits(r.Rate)))
}

func (w *ledgerWriter) weighted(s *set) {
	w.kind(EventWeighted, 0)
	w.uint(uint64(s.id))
	w.uint(uint64(s.weight))
}

// StampEvents puts in front of the events of a commit when it is made, by the wall clock. That
// is for people: nothing is ever decided by it.
func StampEvents(value []byte, at time.Time) []byte {
	w := ledgerWriter{buf: make([]byte, 0, len(value)+8)}
	w.kind(EventStamped, 0)
	w.uint(uint64(max(0, at.UnixMilli())))
	return append(w.buf, value[1:]...)
}

// ErrBadLedger says that a value of the ledger does not decode.
var ErrBadLedger = errors.New("damaged ledger")

// LedgerEvents decodes the value of one ledger key.
func LedgerEvents(value []byte) iter.Seq2[LedgerEvent, error] {
	return func(yield func(LedgerEvent, error) bool) {
		if len(value) == 0 {
			return
		}
		if value[0] < 1 || value[0] > ledgerVersion {
			yield(LedgerEvent{}, fmt.Errorf("%w: expected version 1 to %d, found %d", ErrBadLedger, ledgerVersion, value[0]))
			return
		}
		r := ledgerReader{buf: value, at: 1, version: value[0]}
		for r.at < len(value) {
			ev := r.event()
			if r.bad {
				yield(LedgerEvent{}, fmt.Errorf("%w: at byte %d of %d", ErrBadLedger, r.at, len(value)))
				return
			}
			if !yield(ev, nil) {
				return
			}
		}
	}
}

type ledgerReader struct {
	buf      []byte
	version  uint8
	at       int
	bad      bool
	set      int
	pass     Pass
	position int
}

func (r *ledgerReader) uint() uint64 {
	v, n := binary.Uvarint(r.buf[min(r.at, len(r.buf)):])
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.at += n
	return v
}

// upTo reads a number. A number above limit is damage.
func (r *ledgerReader) upTo(limit uint64) uint64 {
	v := r.uint()
	if v > limit {
		r.bad = true
		return 0
	}
	return v
}

func (r *ledgerReader) int() int         { return int(r.upTo(math.MaxInt)) }
func (r *ledgerReader) passNumber() Pass { return Pass(r.upTo(math.MaxUint32)) }
func (r *ledgerReader) ordinal() Ordinal { return Ordinal(r.upTo(math.MaxUint32)) }
func (r *ledgerReader) float() float32   { return math.Float32frombits(uint32(r.upTo(math.MaxUint32))) }

func (r *ledgerReader) text() string {
	n := r.uint()
	if r.bad || n > uint64(len(r.buf)-r.at) {
		r.bad = true
		return ""
	}
	r.at += int(n)
	return string(r.buf[r.at-int(n) : r.at])
}

func (r *ledgerReader) event() LedgerEvent {
	head := r.buf[r.at]
	r.at++
	ev := LedgerEvent{Kind: EventKind(head & kindMask)}
	switch ev.Kind {
	case EventReported:
		ev.Set, ev.Tasks, ev.Chunks, ev.Algorithm, ev.Seed, ev.ID = r.int(), r.int(), r.int(), uint8(r.upTo(math.MaxUint8)), r.uint(), r.text()
		ev.Weight, ev.Name = 1, Training.String()
		//guard:ledger-of-version-1
		if r.version > 1 {
			ev.Purpose, ev.Passes, ev.Weight, ev.Name = Kind(r.upTo(uint64(kinds-1))), r.passNumber(), int(r.upTo(MaxWeight)), r.text()
		}
		if r.version > 3 {
			ev.Online = r.upTo(1) == 1
		}
	case EventPassOpened, EventAbandoned:
		ev.Set, ev.Pass = r.int(), r.passNumber()
	case EventPassClosed:
		ev.Set, ev.Pass, ev.Counted, ev.SetAside = r.int(), r.passNumber(), r.int(), r.int()
	case EventDispatched, EventFinished, EventReturned, EventFailed, EventTimedOut:
		r.taskHeader(head, &ev)
		ev.Trainer = r.ordinal()
	case EventApplied:
		r.taskHeader(head, &ev)
		ev.Trainer, ev.Step = r.ordinal(), r.uint()
	case EventCommitted:
		ev.Step, ev.Generation = r.uint(), r.uint()
	case EventRolledBack:
		ev.Step, ev.Generation, ev.Epoch = r.uint(), r.uint(), uint32(r.upTo(math.MaxUint32))
	case EventPartly:
		r.taskHeader(head, &ev)
		ev.Records = int64(r.upTo(math.MaxInt64))
	case EventSetAside:
		r.taskHeader(head, &ev)
		ev.Index = r.int()
	case EventRetried, EventDropped:
		ev.Set, ev.Index = r.int(), r.int()
	case EventJoined:
		ev.Trainer, ev.Incarnation, ev.ID = r.ordinal(), r.uint(), r.text()
	case EventLost, EventDraining, EventLeft:
		ev.Trainer = r.ordinal()
	case EventRated:
		ev.Rate = RateChange{r.uint(), r.uint(), r.float(), r.float()}
	case EventWeighted:
		ev.Set, ev.Weight = r.int(), int(r.upTo(MaxWeight))
	case EventAppended:
		ev.Set, ev.Tasks, ev.Chunks = r.int(), r.int(), r.int()
	case EventClosed:
		ev.Set = r.int()
	case EventEnded:
		ev.Status, ev.Reason = Status(r.upTo(math.MaxUint8)), r.text()
	case EventPaused:
		ev.Reason = r.text()
	case EventResumed:
	case EventStamped:
		ev.At = int64(r.upTo(math.MaxInt64))
	default:
		r.bad = true
	}
	return ev
}

func (r *ledgerReader) taskHeader(head uint8, ev *LedgerEvent) {
	if head&flagSamePass == 0 {
		r.set, r.pass = r.int(), r.passNumber()
	}
	d, n := binary.Varint(r.buf[min(r.at, len(r.buf)):])
	if n <= 0 {
		r.bad = true
		return
	}
	r.at += n
	r.position += int(d)
	ev.Set, ev.Pass, ev.Position, ev.Attempt = r.set, r.pass, r.position, 1
	if head&flagFirstAttempt == 0 {
		ev.Attempt = Attempt(r.upTo(math.MaxUint32))
	}
}
