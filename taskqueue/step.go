package taskqueue

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// StepKey holds the last committed synchronous step.
const StepKey = "/ps_step"

// Step is a committed synchronous step. Version v+1 of the parameters consists of the gradients that its contributors computed at
// version v, summed in their order and divided by their records. A rollback stores a step without contributors.
type Step struct {
	Version      uint64        `json:"version"`
	Epoch        uint32        `json:"epoch"`
	Contributors []Contributor `json:"contributors"`
	Earlier      []Inclusion   `json:"earlier,omitempty"`
	// Scale is a factor of the learning rate of the schedule; 0: 1.
	Scale float32 `json:"scale,omitempty"`
}

// Inclusion is the last version with gradients of a running trainer that is no contributor of this step. The trainer may not have
// received that answer yet.
type Inclusion struct {
	Ordinal     Ordinal `json:"ordinal"`
	Incarnation uint64  `json:"incarnation"`
	Version     uint64  `json:"version"`
}

// Contributor is the part of one trainer in a step.
type Contributor struct {
	Ordinal     Ordinal `json:"ordinal"`
	Incarnation uint64  `json:"incarnation"`
	Records     int     `json:"records"`
}

// Encode returns the value of StepKey.
func (s Step) Encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // numbers always encode
	}
	return b
}

// DecodeStep reads the value of StepKey. Without a value it returns version 0.
func DecodeStep(value []byte) (step Step, err error) {
	if value == nil {
		return step, nil
	}
	if err := json.Unmarshal(value, &step); err != nil {
		return step, fmt.Errorf("read %s: %w", StepKey, err)
	}
	return step, nil
}

// Errors of synchronous steps.
var (
	ErrNotSync    = errors.New("this job has no synchronous steps")
	ErrRolledBack = errors.New("rolled back")
	ErrAhead      = errors.New("the trainer is ahead")
)

// syncSteps decides when a synchronous step is complete: when every trainer whose task has a running deadline has staged its
// gradients of the current version, or all of these trainers but the number of backups. Backups follow Chen, Pan, Monga,
// Bengio and Jozefowicz, "Revisiting Distributed Synchronous SGD", 2016. A trainer between two tasks is no contributor, so the
// pass barrier and the step never wait for each other.
//
// Only last is stored. The rest is volatile: trainers repeat their reports to the next leader.
type syncSteps struct {
	last    Step
	changed bool // in this batch
	staged  map[Ordinal]stage
	late    map[Ordinal]int // how many gradients in a row came too late
	missing Clock           // start of the wait for a deterministic step, or its last warning; 0: no step waits
}

// stage is a report that all shards hold the gradients of a trainer. Stages of earlier versions do not count.
type stage struct {
	Contributor
	version uint64
}

const (
	// A step is not complete without a trainer that was late this many times in a row, so that the task of a slow trainer is
	// finished.
	mostLate = 3

	// stepWarning is the interval between warnings while a deterministic step waits for a trainer.
	stepWarning = 10 * time.Second
)

func newSyncSteps() *syncSteps {
	return &syncSteps{staged: map[Ordinal]stage{}, late: map[Ordinal]int{}}
}

// RestoreStep reads the stored value of StepKey into a queue that Restore returned. It does nothing in an asynchronous job.
func (q *Queue) RestoreStep(value []byte) (err error) {
	if q.sync != nil {
		q.sync.last, err = DecodeStep(value)
	}
	return err
}

// SyncStep returns the last synchronous step; ok is false in an asynchronous job.
func (q *Queue) SyncStep() (step Step, ok bool) {
	if q.sync == nil {
		return Step{}, false
	}
	return q.sync.last, true
}

// StageGradients reports that all shards hold the gradients of By.Records records, which a trainer computed at Version. With 0
// records it reports that some shards refused them because Version is past. The answer is AnswerWait until the step after
// Version is committed. Then Answer.Version is the last committed version, and Answer.Included is true if the gradients are in
// Version+1. If a cut waits for the trainer, the answer does not wait: the step is made after the cut.
type StageGradients struct {
	By      Contributor
	Version uint64
	Epoch   uint32 // of the trainer; 0: any
}

func (ev *StageGradients) apply(q *Queue) Answer {
	x := q.sync
	switch {
	case x == nil:
		return Answer{Err: ErrNotSync}
	case q.known(ev.By.Ordinal, ev.By.Incarnation) == nil:
		return Answer{Kind: AnswerRejoin}
	case ev.Epoch != 0 && ev.Epoch != q.epoch:
		return Answer{Err: fmt.Errorf("%w: the job is at epoch %d, the trainer at %d", ErrRolledBack, q.epoch, ev.Epoch)}
	}
	wait, err := x.stage(ev.Version, ev.By)
	if err != nil {
		return Answer{Err: err}
	}
	a := Answer{Version: x.last.Version, Epoch: q.epoch, Included: x.includes(ev.Version, ev.By)}
	//guard:stage-answered-in-a-cut
	if wait && !q.isStopping(ev.By.Ordinal) {
		a.Kind, a.WaitFor = AnswerWait, WaitStep
	}
	return a
}

// stage takes a report. It returns false if that version is past: its step has other contributors.
func (x *syncSteps) stage(version uint64, by Contributor) (wait bool, err error) {
	switch {
	case version < x.last.Version:
		if !x.includes(version, by) {
			x.late[by.Ordinal]++
		}
		return false, nil
	case version > x.last.Version:
		return false, fmt.Errorf("%w: staged at version %d: expected at most %d, the last committed one", ErrAhead, version, x.last.Version)
	case by.Records < 0 || by.Records > math.MaxUint32:
		return false, fmt.Errorf("staged %d records: expected 1 to %d, or 0 where shards refused them as late", by.Records, uint32(math.MaxUint32))
	case by.Records == 0: // shards already have the next version, whose step this trainer has yet to receive
		return true, nil
	}
	x.staged[by.Ordinal] = stage{by, version}
	return true, nil
}

// completeStep commits the next step, if it is complete, and reports whether it did. Ready calls it once for each batch.
func (q *Queue) completeStep() bool {
	x := q.sync
	switch {
	case x == nil:
		return false
	case !x.anyStaged():
		return false
	case q.awaitsRate(): //guard:step-waits-for-its-learning-rate
		return false
	}
	runners, all := q.Contributors()
	if !all {
		q.warnMissing(len(runners))
		return false
	}
	x.missing = 0
	next, ok := x.complete(runners, q.Known, q.opt.Backups)
	if !ok {
		return false
	}
	next.Epoch = q.epoch
	//guard:step-has-its-learning-rate
	if rate := q.rateAt(next.Version); rate.Number > 0 {
		next.Scale = rate.Scale
	}
	q.setStep(next)
	return true
}

func (x *syncSteps) anyStaged() bool {
	for _, s := range x.staged {
		if s.version == x.last.Version {
			return true
		}
	}
	return false
}

// complete returns the next step once enough runners have staged. It leaves out trainers that have staged and run no more (lost, or
// timed out), and incarnations without a session: parameter servers drop the stages of retired incarnations.
func (x *syncSteps) complete(runners []Ordinal, known func(Ordinal, uint64) bool, backups int) (Step, bool) {
	next := Step{Version: x.last.Version + 1}
	for _, o := range runners {
		by, ok := x.staged[o]
		//guard:step-names-live-sessions
		if ok && by.version == x.last.Version && known(o, by.Incarnation) {
			next.Contributors = append(next.Contributors, by.Contributor)
			continue
		}
		if x.late[o] >= mostLate {
			return Step{}, false
		}
		//guard:step-keeps-inclusions
		if was, ok := x.included(o); ok {
			next.Earlier = append(next.Earlier, was)
		}
	}
	//guard:step-waits-for-trainers
	if len(next.Contributors) < max(1, len(runners)-backups) {
		return Step{}, false
	}
	slices.SortFunc(next.Contributors, func(a, b Contributor) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	return next, true
}

// setStep records a step as the last step. The staged gradients of the version before stay until the next step: if the store
// refuses this step, Continue takes them back.
func (q *Queue) setStep(step Step) {
	x := q.sync
	maps.DeleteFunc(x.staged, func(_ Ordinal, s stage) bool { return s.version < x.last.Version })
	maps.DeleteFunc(x.late, func(o Ordinal, _ int) bool { return q.trainers[o] == nil })
	for _, by := range step.Contributors {
		delete(x.late, by.Ordinal)
	}
	x.last, x.changed, q.dirty = step, true, true
}

// resetSteps takes the step of a checkpoint set as the last step and discards staged gradients.
func (q *Queue) resetSteps(step Step) {
	if x := q.sync; x != nil {
		clear(x.staged)
		clear(x.late)
		x.last, x.changed, q.dirty = step, true, true
	}
}

// includes reports whether the gradients of a trainer at version are in the version after it. The answer is known for the last
// version in which the trainer had a part.
func (x *syncSteps) includes(version uint64, by Contributor) bool {
	was, ok := x.included(by.Ordinal)
	return ok && was.Incarnation == by.Incarnation && was.Version == version+1
}

// included returns the last version in which a trainer had a part.
func (x *syncSteps) included(o Ordinal) (Inclusion, bool) {
	for _, by := range x.last.Contributors {
		if by.Ordinal == o {
			return Inclusion{o, by.Incarnation, x.last.Version}, true
		}
	}
	for _, was := range x.last.Earlier {
		if was.Ordinal == o {
			return was, true
		}
	}
	return Inclusion{}, false
}

// continues takes over the volatile values. A staged gradient of a refused step counts again.
func (x *syncSteps) continues(from *syncSteps) {
	x.missing = from.missing
	maps.Copy(x.staged, from.staged)
	maps.Copy(x.late, from.late)
}

// warnMissing warns when a step waits for a trainer that has not joined, or has not requested its next task.
func (q *Queue) warnMissing(running int) {
	switch x := q.sync; {
	case q.opt.Ranks == 0: // a cut is under way
	case x.missing == 0:
		x.missing = q.clock
	case q.clock.Sub(x.missing) >= stepWarning:
		x.missing = q.clock
		q.warn("a deterministic step waits for a trainer: start as many as --trainers says", map[string]any{"running": running, "expected": q.opt.Ranks})
	}
}
