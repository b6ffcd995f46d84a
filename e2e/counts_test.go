package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"trainmaster/ledger"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
	"trainmaster/trainer/reference"
)

// place is a task of a pass: its position in the pass's order.
type place struct {
	pass     taskqueue.Pass
	position int
}

// delivery is one dispatch of a task to a trainer.
type delivery struct {
	place
	attempt taskqueue.Attempt
	trainer string // its id
}

// history is what the ledger of a job says, read by this test itself, without the verifier.
type history struct {
	finished   map[place][]delivery // as they were counted, without those that a rollback undid
	dispatched map[place]int        // how often
	returned   []delivery           // taken back from their trainers, uncounted
	sessions   map[string]int       // trainer id -> how often it joined since the last rollback
	lost       map[string]int       // trainer id -> how often it was lost
}

// history reads the ledger.
func (j *job) history() history {
	j.t.Helper()
	state, _, _ := mastertest.State(j.t, j.store)
	reader, err := ledger.Open(j.t.Context(), j.store, j.name, "")
	if err != nil {
		j.t.Fatal(err)
	}
	h := history{finished: map[place][]delivery{}, dispatched: map[place]int{}, sessions: map[string]int{}, lost: map[string]int{}}
	ids, steps := map[taskqueue.Ordinal]string{}, map[delivery]uint64{}
	for entry, err := range reader.Entries(j.t.Context(), state.Commit) {
		if err != nil {
			j.t.Fatal(err)
		}
		for ev, err := range taskqueue.LedgerEvents(entry.Events) {
			if err != nil {
				j.t.Fatalf("commit %d: %v", entry.Commit, err)
			}
			d := delivery{place{ev.Pass, ev.Position}, ev.Attempt, ids[ev.Trainer]}
			switch ev.Kind {
			case taskqueue.EventJoined:
				ids[ev.Trainer] = ev.ID
				h.sessions[ev.ID]++
			case taskqueue.EventLost:
				h.lost[ids[ev.Trainer]]++
			case taskqueue.EventDispatched:
				h.dispatched[d.place]++
			case taskqueue.EventFinished:
				h.finished[d.place] = append(h.finished[d.place], d)
			case taskqueue.EventApplied:
				h.finished[d.place], steps[d] = append(h.finished[d.place], d), ev.Step
			case taskqueue.EventRolledBack:
				clear(h.sessions)
				for at, list := range h.finished {
					if h.finished[at] = slices.DeleteFunc(list, func(d delivery) bool { return steps[d] > ev.Step }); len(h.finished[at]) == 0 {
						delete(h.finished, at)
					}
				}
			case taskqueue.EventReturned, taskqueue.EventFailed, taskqueue.EventTimedOut:
				h.returned = append(h.returned, d)
			}
		}
	}
	return h
}

// trained is what the trainers noted in their journal.
func (j *job) trained() map[delivery]reference.Entry {
	j.t.Helper()
	content, err := os.ReadFile(j.journal())
	if err != nil {
		j.t.Fatal(err)
	}
	entries := map[delivery]reference.Entry{}
	for line := range bytes.Lines(content) {
		var e reference.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			j.t.Fatalf("line %q of the journal: %v", line, err)
		}
		entries[delivery{place{e.Pass, e.Position}, e.Attempt, e.Trainer}] = e
	}
	return entries
}

// wantExactlyOnce fails the test unless every task of every pass was counted once: by `master verify`, by the ledger as
// this test reads it, and by what the trainers noted themselves. Trainers may have trained more than was counted (the
// finish of a killed one never came), never less.
func (j *job) wantExactlyOnce(passes, tasks int) history {
	j.t.Helper()
	j.wantVerified(passes, tasks)
	h, trained := j.history(), j.trained()
	for pass := taskqueue.Pass(1); pass <= taskqueue.Pass(passes); pass++ {
		records, indices := 0, map[int]bool{}
		for position := range tasks {
			counted := h.finished[place{pass, position}]
			if len(counted) != 1 {
				j.t.Errorf("position %d of pass %d was counted %d times, expected once: %v", position, pass, len(counted), counted)
				continue
			}
			entry, ok := trained[counted[0]]
			if !ok {
				j.t.Errorf("position %d of pass %d was counted for %+v, whose journal does not have it", position, pass, counted[0])
			}
			records += entry.Records
			indices[entry.Index] = true
		}
		if records != j.data.Train.Records || len(indices) != tasks {
			j.t.Errorf("pass %d: counted %d records of %d tasks, expected %d of %d", pass, records, len(indices), j.data.Train.Records, tasks)
		}
	}
	if n := len(h.finished); n != passes*tasks {
		j.t.Errorf("%d tasks were counted, expected %d passes of %d", n, passes, tasks)
	}
	if len(trained) < passes*tasks {
		j.t.Errorf("the trainers trained %d tasks, expected at least %d passes of %d", len(trained), passes, tasks)
	}
	return h
}

// wantVerified fails the test unless `master verify` finds the passes whole.
func (j *job) wantVerified(passes, tasks int) {
	j.t.Helper()
	o := run(j.t, j.dir, j.in("verify", "-o", "json")...)
	o.wants(j.t, 0)
	var reports []taskqueue.PassReport
	o.decode(j.t, &reports)
	if len(reports) != passes {
		j.t.Fatalf("verify reports %d passes, expected %d: %s", len(reports), passes, o.stdout)
	}
	for i, r := range reports {
		want := taskqueue.PassReport{Pass: taskqueue.Pass(i + 1), Tasks: tasks, CountedOnce: tasks, Redelivered: r.Redelivered}
		if r != want {
			j.t.Errorf("verify reports %+v, expected %+v", r, want)
		}
	}
}

// decode reads JSON that a command wrote.
func decode(t testing.TB, text string, v any) {
	t.Helper()
	if err := decodeStrictly(text, v); err != nil {
		t.Fatalf("expected JSON of a %T, found %q: %v", v, text, err)
	}
}

func decodeStrictly(text string, v any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// decodeSome reads of JSON what v has fields for.
func decodeSome(t testing.TB, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("expected JSON of a %T, found %q: %v", v, text, err)
	}
}
