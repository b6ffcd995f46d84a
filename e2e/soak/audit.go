package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"trainmaster/taskqueue"
	"trainmaster/trainer/reference"
)

// audit compares what was counted, by the ledger, with what the trainers know to have trained.
type audit struct {
	trained  map[delivery]string // by whom
	trainers map[taskqueue.Ordinal]string
	counted  map[place]struct{}
	closed   map[taskqueue.Pass]int // what the ledger says was counted in it

	twice    []place
	unknown  []string // counted, and not in the journal of whom it was counted for
	sessions int
	lost     int
}

// place is a task of a pass.
type place struct {
	pass     taskqueue.Pass
	position int
}

// delivery is one dispatch of it, to one trainer.
type delivery struct {
	place
	attempt taskqueue.Attempt
}

func newAudit() *audit {
	return &audit{trained: map[delivery]string{}, trainers: map[taskqueue.Ordinal]string{}, counted: map[place]struct{}{}, closed: map[taskqueue.Pass]int{}}
}

// journal takes the lines of a journal.
func (a *audit) journal(lines io.Reader) error {
	scan := bufio.NewScanner(lines)
	for scan.Scan() {
		var e reference.Entry
		if err := json.Unmarshal(scan.Bytes(), &e); err != nil {
			return fmt.Errorf("line %q of a journal: %w", scan.Text(), err)
		}
		if e.Records != recordsPerChunk {
			return fmt.Errorf("line %q of a journal: expected %d records", scan.Text(), recordsPerChunk)
		}
		d := delivery{place{e.Pass, e.Position}, e.Attempt}
		if other, ok := a.trained[d]; ok && other != e.Trainer {
			return fmt.Errorf("%s and %s both trained %+v, which was given to one", other, e.Trainer, d)
		}
		a.trained[d] = e.Trainer
	}
	return scan.Err()
}

// event takes the next event of the ledger, after all journals.
func (a *audit) event(ev *taskqueue.LedgerEvent) {
	switch ev.Kind {
	case taskqueue.EventJoined:
		a.trainers[ev.Trainer] = ev.ID
		a.sessions++
	case taskqueue.EventLost:
		a.lost++
	case taskqueue.EventPassClosed:
		a.closed[ev.Pass] = ev.Counted
	case taskqueue.EventFinished:
		d := delivery{place{ev.Pass, ev.Position}, ev.Attempt}
		if _, ok := a.counted[d.place]; ok {
			a.twice = append(a.twice, d.place)
		}
		a.counted[d.place] = struct{}{}
		// A finish that came after its session was lost counts, and names nobody.
		by, named := a.trainers[ev.Trainer]
		if trainer, ok := a.trained[d]; !ok || named && trainer != by {
			a.unknown = append(a.unknown, fmt.Sprintf("position %d of pass %d, attempt %d, by %q", d.position, d.pass, d.attempt, by))
		}
	}
}

// missing are the tasks of the first passes that were not counted.
func (a *audit) missing(passes int) (list []place) {
	for pass := 1; pass <= passes; pass++ {
		for position := range tasksPerPass {
			p := place{taskqueue.Pass(pass), position}
			if _, ok := a.counted[p]; !ok {
				list = append(list, p)
			}
		}
	}
	return list
}

// errs says what is wrong with so many passes that are over.
func (a *audit) errs(passes int) (errs []error) {
	if missing := a.missing(passes); len(missing) > 0 {
		errs = append(errs, fmt.Errorf("lost: %d tasks were not counted, the first: position %d of pass %d", len(missing), missing[0].position, missing[0].pass))
	}
	if n := len(a.twice); n > 0 {
		errs = append(errs, fmt.Errorf("%d tasks were counted twice, the first: position %d of pass %d", n, a.twice[0].position, a.twice[0].pass))
	}
	if n := len(a.unknown); n > 0 {
		errs = append(errs, fmt.Errorf("%d tasks were counted, and the trainer's journal lacks them, the first: %s", n, a.unknown[0]))
	}
	if len(a.closed) != passes {
		errs = append(errs, fmt.Errorf("the ledger closes %d passes, expected %d", len(a.closed), passes))
	}
	if n := len(a.counted); n != passes*tasksPerPass {
		errs = append(errs, fmt.Errorf("%d tasks were counted, expected %d passes of %d", n, passes, tasksPerPass))
	}
	return errs
}
