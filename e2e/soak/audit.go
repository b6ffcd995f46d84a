package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"trainmaster/taskqueue"
	"trainmaster/trainer/reference"
)

// audit compares the finishes in the ledger with the journals of the trainers.
type audit struct {
	trained  map[delivery]string // trainer by attempt
	trainers map[taskqueue.Ordinal]string
	counted  map[taskPosition]struct{}
	closed   map[taskqueue.Pass]int // tasks counted in a pass, according to the ledger

	twice    []taskPosition
	unknown  []string // finishes that the journal of their trainer lacks
	sessions int
	lost     int
}

// taskPosition is a task of a pass.
type taskPosition struct {
	pass     taskqueue.Pass
	position int
}

// delivery is an attempt of a task.
type delivery struct {
	taskPosition
	attempt taskqueue.Attempt
}

func newAudit() *audit {
	return &audit{trained: map[delivery]string{}, trainers: map[taskqueue.Ordinal]string{}, counted: map[taskPosition]struct{}{}, closed: map[taskqueue.Pass]int{}}
}

// journal adds the lines of a journal.
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
		d := delivery{taskPosition{e.Pass, e.Position}, e.Attempt}
		if other, ok := a.trained[d]; ok && other != e.Trainer {
			return fmt.Errorf("%s and %s both trained %+v, expected one trainer", other, e.Trainer, d)
		}
		a.trained[d] = e.Trainer
	}
	return scan.Err()
}

// event adds the next event of the ledger. All journals must be added before.
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
		d := delivery{taskPosition{ev.Pass, ev.Position}, ev.Attempt}
		if _, ok := a.counted[d.taskPosition]; ok {
			a.twice = append(a.twice, d.taskPosition)
		}
		a.counted[d.taskPosition] = struct{}{}
		// A finish after the loss of its session counts, and names no trainer.
		by, named := a.trainers[ev.Trainer]
		if trainer, ok := a.trained[d]; !ok || named && trainer != by {
			a.unknown = append(a.unknown, fmt.Sprintf("position %d of pass %d, attempt %d, by %q", d.position, d.pass, d.attempt, by))
		}
	}
}

// missing returns the tasks of the given number of passes that were not counted.
func (a *audit) missing(passes int) (list []taskPosition) {
	for pass := 1; pass <= passes; pass++ {
		for position := range tasksPerPass {
			p := taskPosition{taskqueue.Pass(pass), position}
			if _, ok := a.counted[p]; !ok {
				list = append(list, p)
			}
		}
	}
	return list
}

// errs returns the errors in the given number of ended passes.
func (a *audit) errs(passes int) (errs []error) {
	if missing := a.missing(passes); len(missing) > 0 {
		errs = append(errs, fmt.Errorf("lost: %d tasks were not counted, the first: position %d of pass %d", len(missing), missing[0].position, missing[0].pass))
	}
	if n := len(a.twice); n > 0 {
		errs = append(errs, fmt.Errorf("%d tasks were counted twice, the first: position %d of pass %d", n, a.twice[0].position, a.twice[0].pass))
	}
	if n := len(a.unknown); n > 0 {
		errs = append(errs, fmt.Errorf("%d counted tasks are missing from the journals of their trainers, the first: %s", n, a.unknown[0]))
	}
	if len(a.closed) != passes {
		errs = append(errs, fmt.Errorf("the ledger closes %d passes, expected %d", len(a.closed), passes))
	}
	if n := len(a.counted); n != passes*tasksPerPass {
		errs = append(errs, fmt.Errorf("%d tasks were counted, expected %d passes of %d", n, passes, tasksPerPass))
	}
	return errs
}
