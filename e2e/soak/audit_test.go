package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"trainmaster/taskqueue"
	"trainmaster/trainer/reference"
)

// history returns the ledger events and the journal of a correct job with two passes.
func history(t *testing.T) (events []taskqueue.LedgerEvent, lines []string) {
	t.Helper()
	events = append(events,
		taskqueue.LedgerEvent{Kind: taskqueue.EventJoined, Trainer: 1, ID: "a"},
		taskqueue.LedgerEvent{Kind: taskqueue.EventJoined, Trainer: 2, ID: "b"})
	for pass := taskqueue.Pass(1); pass <= 2; pass++ {
		for position := range tasksPerPass {
			by := position % 2
			text, err := json.Marshal(reference.Entry{Trainer: []string{"a", "b"}[by], Pass: pass, Position: position, Attempt: 1, Records: recordsPerChunk})
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, string(text))
			events = append(events, taskqueue.LedgerEvent{Kind: taskqueue.EventFinished, Pass: pass, Position: position, Attempt: 1, Trainer: taskqueue.Ordinal(by + 1)})
		}
		events = append(events, taskqueue.LedgerEvent{Kind: taskqueue.EventPassClosed, Pass: pass, Counted: tasksPerPass})
	}
	return events, lines
}

func audited(t *testing.T, events []taskqueue.LedgerEvent, lines []string) string {
	t.Helper()
	a := newAudit()
	if err := a.journal(strings.NewReader(strings.Join(lines, "\n"))); err != nil {
		return err.Error()
	}
	for i := range events {
		a.event(&events[i])
	}
	return fmt.Sprint(a.errs(2))
}

func TestAudit(t *testing.T) {
	const some = 700 // index of a finish event
	tests := map[string]struct {
		spoil func(events []taskqueue.LedgerEvent, lines []string) ([]taskqueue.LedgerEvent, []string)
		found string
	}{
		"correct history": {
			func(e []taskqueue.LedgerEvent, l []string) ([]taskqueue.LedgerEvent, []string) { return e, l },
			"[]",
		},
		"second attempt without a finish": {
			func(e []taskqueue.LedgerEvent, l []string) ([]taskqueue.LedgerEvent, []string) {
				return e, append(l, strings.Replace(l[3], `"attempt":1`, `"attempt":2`, 1))
			},
			"[]",
		},
		"missing finish": {
			func(e []taskqueue.LedgerEvent, l []string) ([]taskqueue.LedgerEvent, []string) {
				return slices.Delete(e, some, some+1), l
			},
			"lost: 1 tasks were not counted, the first: position 698 of pass 1",
		},
		"finish counted twice": {
			func(e []taskqueue.LedgerEvent, l []string) ([]taskqueue.LedgerEvent, []string) {
				return slices.Insert(e, some+5, e[some]), l
			},
			"1 tasks were counted twice, the first: position 698 of pass 1",
		},
		"finish without a journal entry": {
			func(e []taskqueue.LedgerEvent, l []string) ([]taskqueue.LedgerEvent, []string) {
				return e, slices.Delete(l, 10, 11)
			},
			"1 counted tasks are missing from the journals of their trainers, the first: position 10 of pass 1, attempt 1, by \"a\"",
		},
		"journal entry of another trainer": {
			func(e []taskqueue.LedgerEvent, l []string) ([]taskqueue.LedgerEvent, []string) {
				e[some].Trainer = 3 - e[some].Trainer
				return e, l
			},
			"missing from the journals of their trainers",
		},
		"finish after the loss of its session": {
			func(e []taskqueue.LedgerEvent, l []string) ([]taskqueue.LedgerEvent, []string) {
				e[some].Trainer = 0
				return e, l
			},
			"[]",
		},
		"finish without a trainer and a journal entry": {
			func(e []taskqueue.LedgerEvent, l []string) ([]taskqueue.LedgerEvent, []string) {
				e[some].Trainer = 0
				return e, slices.Delete(l, 698, 699)
			},
			"1 counted tasks are missing from the journals of their trainers",
		},
		"two journal entries of one attempt": {
			func(e []taskqueue.LedgerEvent, l []string) ([]taskqueue.LedgerEvent, []string) {
				return e, append(l, strings.Replace(l[4], `"trainer":"a"`, `"trainer":"b"`, 1))
			},
			"both trained",
		},
		"pass not closed": {
			func(e []taskqueue.LedgerEvent, l []string) ([]taskqueue.LedgerEvent, []string) {
				return e[:len(e)-1], l
			},
			"the ledger closes 1 passes, expected 2",
		},
		"missing records": {
			func(e []taskqueue.LedgerEvent, l []string) ([]taskqueue.LedgerEvent, []string) {
				l[0] = strings.Replace(l[0], fmt.Sprintf(`"records":%d`, recordsPerChunk), `"records":1`, 1)
				return e, l
			},
			"expected 5 records",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			events, lines := test.spoil(history(t))
			if found := audited(t, events, lines); !strings.Contains(found, test.found) {
				t.Errorf("expected %s, found %s", test.found, found)
			}
		})
	}
}
