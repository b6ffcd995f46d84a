package taskqueue

import (
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// exampleLedger encodes one event of each kind, with places in every form.
func exampleLedger() ([]byte, []LedgerEvent) {
	first := &set{id: 0, tasks: 7, chunks: 14, algorithm: orderFeistel, seed: 42, reportID: "report-1", name: "training", weight: 1}
	second := &set{id: 1, tasks: 1 << 40, chunks: 1 << 40, algorithm: orderIdentity, seed: 1<<64 - 1, reportID: "", name: "held-out", kind: Evaluation, passes: 1<<32 - 1, weight: MaxWeight}
	trainer := &trainer{ordinal: 3, incarnation: 0x20001, id: "trainer-α"}
	var w ledgerWriter
	w.report(first)
	w.report(second)
	w.passOpened(0, 1)
	w.joined(trainer)
	w.dispatched(&entry{set: first, pass: 1, position: 5}, 3, 1)
	w.dispatched(&entry{set: first, pass: 1, position: 2}, 3, 2)
	w.dispatched(&entry{set: second, pass: 1<<32 - 1, position: 1<<40 - 1}, 1<<32-1, 1<<32-1)
	w.finished(0, Token{Pass: 1, Position: 5, Attempt: 1}, trainer, 0)
	w.finished(0, Token{Pass: 1, Position: 6, Attempt: 300}, nil, 0)
	w.returned(&entry{set: first, pass: 2, position: 0}, 3, 1)
	w.failed(&entry{set: first, pass: 2, position: 1}, 3, 1)
	w.timedOut(&entry{set: first, pass: 2, position: 1}, 3, 2)
	w.setAside(&entry{set: first, pass: 2, position: 1, next: 3}, 6)
	w.retried(0, 6)
	w.passClosed(0, 1, 6, 1)
	w.lost(trainer)
	w.ended(Failed, "nothing was counted")
	w.paused("paused by an operator: the disk is exchanged")
	w.resumed()
	w.draining(trainer)
	w.dropped(0, 6)
	w.finished(0, Token{Pass: 3, Position: 4, Attempt: 2}, trainer, 1<<64-1)
	w.committed(9, 1<<64-1)
	w.partly(0, liveKey{3, 5}, 1, 1<<63-1)
	w.rolledBack(9, 2, 1<<32-1)
	w.rated(RateChange{1<<64 - 1, 7, 0.1, 0.01})
	w.weighted(second)
	w.passAbandoned(1, 3)
	w.report(&set{id: 2, algorithm: orderArrival, online: true, weight: 1, name: "clicks"})
	w.appended(2, 1<<40, 1<<40)
	w.closed(2)
	return StampEvents(w.take(), time.UnixMilli(1_700_000_000_123)), []LedgerEvent{
		{Kind: EventStamped, At: 1_700_000_000_123},
		{Kind: EventReported, Set: 0, Tasks: 7, Chunks: 14, Algorithm: orderFeistel, Seed: 42, ID: "report-1", Name: "training", Weight: 1},
		{Kind: EventReported, Set: 1, Tasks: 1 << 40, Chunks: 1 << 40, Algorithm: orderIdentity, Seed: 1<<64 - 1, Name: "held-out", Purpose: Evaluation, Passes: 1<<32 - 1, Weight: MaxWeight},
		{Kind: EventPassOpened, Pass: 1},
		{Kind: EventJoined, Trainer: 3, Incarnation: 0x20001, ID: "trainer-α"},
		{Kind: EventDispatched, Pass: 1, Position: 5, Trainer: 3, Attempt: 1},
		{Kind: EventDispatched, Pass: 1, Position: 2, Trainer: 3, Attempt: 2},
		{Kind: EventDispatched, Set: 1, Pass: 1<<32 - 1, Position: 1<<40 - 1, Trainer: 1<<32 - 1, Attempt: 1<<32 - 1},
		{Kind: EventFinished, Pass: 1, Position: 5, Trainer: 3, Attempt: 1},
		{Kind: EventFinished, Pass: 1, Position: 6, Attempt: 300},
		{Kind: EventReturned, Pass: 2, Position: 0, Trainer: 3, Attempt: 1},
		{Kind: EventFailed, Pass: 2, Position: 1, Trainer: 3, Attempt: 1},
		{Kind: EventTimedOut, Pass: 2, Position: 1, Trainer: 3, Attempt: 2},
		{Kind: EventSetAside, Pass: 2, Position: 1, Attempt: 2, Index: 6},
		{Kind: EventRetried, Index: 6},
		{Kind: EventPassClosed, Pass: 1, Counted: 6, SetAside: 1},
		{Kind: EventLost, Trainer: 3},
		{Kind: EventEnded, Status: Failed, Reason: "nothing was counted"},
		{Kind: EventPaused, Reason: "paused by an operator: the disk is exchanged"},
		{Kind: EventResumed},
		{Kind: EventDraining, Trainer: 3},
		{Kind: EventDropped, Index: 6},
		{Kind: EventApplied, Pass: 3, Position: 4, Trainer: 3, Attempt: 2, Step: 1<<64 - 1},
		{Kind: EventCommitted, Step: 9, Generation: 1<<64 - 1},
		{Kind: EventPartly, Pass: 3, Position: 5, Attempt: 1, Records: 1<<63 - 1},
		{Kind: EventRolledBack, Step: 9, Generation: 2, Epoch: 1<<32 - 1},
		{Kind: EventRated, Rate: RateChange{1<<64 - 1, 7, 0.1, 0.01}},
		{Kind: EventWeighted, Set: 1, Weight: MaxWeight},
		{Kind: EventAbandoned, Set: 1, Pass: 3},
		{Kind: EventReported, Set: 2, Algorithm: orderArrival, Name: "clicks", Weight: 1, Online: true},
		{Kind: EventAppended, Set: 2, Tasks: 1 << 40, Chunks: 1 << 40},
		{Kind: EventClosed, Set: 2},
	}
}

func events(value []byte) ([]LedgerEvent, error) {
	var list []LedgerEvent
	for ev, err := range LedgerEvents(value) {
		if err != nil {
			return list, err
		}
		list = append(list, ev)
	}
	return list, nil
}

func TestLedgerRoundTrip(t *testing.T) {
	value, want := exampleLedger()
	got, err := events(value)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got\n%+v\nexpected\n%+v", got, want)
	}
	if got, err := events(nil); err != nil || got != nil {
		t.Fatalf("commit without events: found %v, %v", got, err)
	}
}

func TestGoldenLedger(t *testing.T) {
	var w ledgerWriter
	s := &set{}
	w.dispatched(&entry{set: s, pass: 1, position: 5}, 3, 1)
	w.dispatched(&entry{set: s, pass: 1, position: 2}, 3, 2)
	documented(t, "ledger.md", w.take())
	value, want := exampleLedger()
	var b strings.Builder
	for len(value) > 0 {
		n := min(16, len(value))
		fmt.Fprintf(&b, "% x\n", value[:n])
		value = value[n:]
	}
	for _, ev := range want {
		fmt.Fprintf(&b, "%+v\n", ev)
	}
	golden(t, "ledger-4.txt", b.String())
}

// newestOf has the last kind of each earlier version.
var newestOf = map[int]EventKind{1: EventLeft, 2: EventLeft, 3: EventAbandoned}

// A ledger of an earlier version stays readable: a job continues it after an upgrade.
func TestLedgerOfEarlierVersions(t *testing.T) {
	for version := 1; version < ledgerVersion; version++ {
		var value []byte
		for line := range strings.Lines(readGolden(t, fmt.Sprintf("ledger-%d.txt", version))) {
			if part, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(line), " ", "")); err == nil {
				value = append(value, part...)
			}
		}
		_, want := exampleLedger()
		want = slices.DeleteFunc(want, func(ev LedgerEvent) bool { return ev.Kind > newestOf[version] || ev.Online })
		for i := range want {
			if version == 1 && want[i].Kind == EventReported {
				want[i].Name, want[i].Purpose, want[i].Passes, want[i].Weight = "training", Training, 0, 1
			}
		}
		if got, err := events(value); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("version %d: found\n%+v, %v\nexpected\n%+v", version, got, err, want)
		}
	}
}

// A value that is cut within an event is refused and never read as other events. A value of another version is
// refused as a whole.
func TestLedgerDamaged(t *testing.T) {
	value, want := exampleLedger()
	borders := 0
	for n := 1; n < len(value); n++ {
		got, err := events(value[:n])
		if !slices.Equal(got, want[:len(got)]) {
			t.Fatalf("cut at %d: expected an error, found %+v", n, got)
		}
		if err == nil {
			borders++
		} else if !errors.Is(err, ErrBadLedger) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	if borders != len(want) {
		t.Fatalf("expected %[2]d readable cuts, one after each event; found %[1]d", borders, len(want))
	}
	for _, value := range [][]byte{{ledgerVersion + 1}, {0}, {ledgerVersion, 0}, {ledgerVersion, 19}, {ledgerVersion, 0x3f}} {
		if _, err := events(value); !errors.Is(err, ErrBadLedger) {
			t.Fatalf("% x: %v", value, err)
		}
	}
}

func FuzzLedgerEvents(f *testing.F) {
	value, _ := exampleLedger()
	f.Add(value)
	f.Add([]byte{ledgerVersion})
	f.Fuzz(func(t *testing.T, value []byte) {
		list, err := events(value)
		if err != nil && !errors.Is(err, ErrBadLedger) {
			t.Fatal(err)
		}
		if len(list) > len(value) {
			t.Fatalf("%d events in %d bytes", len(list), len(value))
		}
		for _, ev := range list {
			if ev.Set < 0 || ev.Tasks < 0 || ev.Chunks < 0 || ev.Counted < 0 || ev.SetAside < 0 || ev.Index < 0 {
				t.Fatalf("negative: %+v", ev)
			}
		}
		v := NewVerifier()
		if err := v.Add(1, value); err != nil && !errors.Is(err, ErrBadLedger) {
			t.Fatal(err)
		}
		v.Report()
	})
}
