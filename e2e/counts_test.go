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

// taskPosition identifies a task of a pass by its position in the order of the pass.
type taskPosition struct {
	pass     taskqueue.Pass
	position int
}

// delivery is an attempt of a task.
type delivery struct {
	taskPosition
	attempt taskqueue.Attempt
	trainer string // id of the trainer
}

// history summarizes the ledger of a job. It is computed without the verifier.
type history struct {
	finished   map[taskPosition][]delivery // counted attempts, without attempts that a rollback undid
	dispatched map[taskPosition]int        // number of attempts
	returned   []delivery                  // attempts that were taken back
	sessions   map[string]int              // joins since the last rollback, by trainer id
	lost       map[string]int              // lost sessions by trainer id
}

// history reads the ledger, without evaluation rounds.
func (j *job) history() history {
	j.t.Helper()
	state, _, _ := mastertest.State(j.t, j.store)
	reader, err := ledger.Open(j.t.Context(), j.store, j.name, "")
	if err != nil {
		j.t.Fatal(err)
	}
	h := history{finished: map[taskPosition][]delivery{}, dispatched: map[taskPosition]int{}, sessions: map[string]int{}, lost: map[string]int{}}
	ids, steps := map[taskqueue.Ordinal]string{}, map[delivery]uint64{}
	for entry, err := range reader.Entries(j.t.Context(), state.Commit) {
		if err != nil {
			j.t.Fatal(err)
		}
		for ev, err := range taskqueue.LedgerEvents(entry.Events) {
			if err != nil {
				j.t.Fatalf("commit %d: %v", entry.Commit, err)
			}
			if ev.Set != 0 {
				continue // a task of an evaluation round
			}
			d := delivery{taskPosition{ev.Pass, ev.Position}, ev.Attempt, ids[ev.Trainer]}
			switch ev.Kind {
			case taskqueue.EventJoined:
				ids[ev.Trainer] = ev.ID
				h.sessions[ev.ID]++
			case taskqueue.EventLost:
				h.lost[ids[ev.Trainer]]++
			case taskqueue.EventDispatched:
				h.dispatched[d.taskPosition]++
			case taskqueue.EventFinished:
				h.finished[d.taskPosition] = append(h.finished[d.taskPosition], d)
			case taskqueue.EventApplied:
				h.finished[d.taskPosition], steps[d] = append(h.finished[d.taskPosition], d), ev.Step
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

// trained returns the journal of the trainers.
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
		entries[delivery{taskPosition{e.Pass, e.Position}, e.Attempt, e.Trainer}] = e
	}
	return entries
}

// wantExactlyOnce fails the test unless every task of every pass was counted once. It checks the result of `master verify`,
// the ledger, and the journal of the trainers. The journal may contain more tasks than were counted, because a killed
// trainer cannot report its finish.
func (j *job) wantExactlyOnce(passes, tasks int) history {
	j.t.Helper()
	j.wantVerified(passes, tasks)
	h, trained := j.history(), j.trained()
	for pass := taskqueue.Pass(1); pass <= taskqueue.Pass(passes); pass++ {
		records, indices := 0, map[int]bool{}
		for position := range tasks {
			counted := h.finished[taskPosition{pass, position}]
			if len(counted) != 1 {
				j.t.Errorf("position %d of pass %d was counted %d times, expected once: %v", position, pass, len(counted), counted)
				continue
			}
			entry, ok := trained[counted[0]]
			if !ok {
				j.t.Errorf("position %d of pass %d: counted attempt %+v is not in the journal", position, pass, counted[0])
			}
			records += int(entry.Base) + entry.Records // an earlier attempt trained the first ones, and a checkpoint has them
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

// wantVerified fails the test unless `master verify` finds every task of every pass counted once.
func (j *job) wantVerified(passes, tasks int) {
	j.t.Helper()
	o := run(j.t, j.dir, j.in("verify", "-o", "json")...)
	o.wants(j.t, 0)
	var reports []taskqueue.PassReport
	o.decode(j.t, &reports)
	reports = slices.DeleteFunc(reports, func(r taskqueue.PassReport) bool { return r.Set != 0 }) // passes of evaluation rounds
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

// decode decodes the JSON output of a command. Unknown fields are an error.
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

// decodeSome decodes the fields of v from JSON and ignores other fields.
func decodeSome(t testing.TB, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("expected JSON of a %T, found %q: %v", v, text, err)
	}
}
