package master

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"trainmaster/taskqueue"
)

// StepKey holds the last committed synchronous step.
const StepKey = "/ps_step"

// Step is a committed synchronous step: version v+1 of the parameters comes from the
// gradients that its contributors computed at version v, summed in their order and divided
// by their records.
type Step struct {
	Version      uint64        `json:"version"`
	Epoch        uint32        `json:"epoch"`
	Contributors []Contributor `json:"contributors"`
	Earlier      []Inclusion   `json:"earlier,omitempty"`
}

// Inclusion is the last version that a trainer at work, which is no contributor of this
// step, had a part in: it may not have been told yet.
type Inclusion struct {
	Ordinal     taskqueue.Ordinal `json:"ordinal"`
	Incarnation uint64            `json:"incarnation"`
	Version     uint64            `json:"version"`
}

// Contributor is one trainer's part in a step.
type Contributor struct {
	Ordinal     taskqueue.Ordinal `json:"ordinal"`
	Incarnation uint64            `json:"incarnation"`
	Records     int               `json:"records"`
}

// steps decides when a synchronous step is complete: when every trainer on whose task the
// clock runs has staged its gradients of the current version, or all but as many as there
// are backups (Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting Distributed Synchronous
// SGD", 2016). A trainer between two tasks is no contributor, so the pass barrier and the
// step never wait for each other.
type steps struct {
	backups int
	last    Step
	reached uint64 // the greatest version that a server was found to have
	staged  map[taskqueue.Ordinal]Contributor
	late    map[taskqueue.Ordinal]int // how often in a row it came too late
}

// mostLate is how often in a row a trainer's mini-batch comes too late; then a step is not
// complete without it, so that a slow trainer's task is done in the end.
const mostLate = 3

func newSteps(stored []byte, backups int) (*steps, error) {
	s := &steps{backups: backups, staged: map[taskqueue.Ordinal]Contributor{}, late: map[taskqueue.Ordinal]int{}}
	if stored != nil {
		if err := json.Unmarshal(stored, &s.last); err != nil {
			return nil, fmt.Errorf("read %s: %w", StepKey, err)
		}
	}
	return s, nil
}

// stage takes a report that all shards hold a trainer's gradients of a version. It returns
// false when that version is committed already: it was that of others.
func (s *steps) stage(version uint64, by Contributor) (current bool, err error) {
	switch {
	case version < s.last.Version:
		if !s.includes(version, by.Ordinal, by.Incarnation) {
			s.late[by.Ordinal]++
		}
		return false, nil
	case version > s.last.Version:
		return false, fmt.Errorf("%w: staged at version %d: expected at most %d, the last committed one", errAhead, version, s.last.Version)
	case by.Records < 0 || by.Records > math.MaxUint32:
		return false, fmt.Errorf("staged %d records: expected 1 to %d, or 0 where shards refused them as late", by.Records, uint32(math.MaxUint32))
	case by.Records == 0: // shards know of a later version: it is heard of soon, see overtaken
		return true, nil
	}
	s.staged[by.Ordinal] = by
	return true, nil
}

// complete returns the next step once enough runners have staged. Those who staged and run
// no more (lost, or timed out) are left out. So are incarnations without a session, which known reports: parameter servers
// drop the stages of retired incarnations.
func (s *steps) complete(runners []taskqueue.Ordinal, known func(taskqueue.Ordinal, uint64) bool, epoch uint32) (Step, bool) {
	next := Step{Version: s.last.Version + 1, Epoch: epoch}
	for _, o := range runners {
		by, ok := s.staged[o]
		switch {
		//guard:step-names-live-sessions
		case ok && known(o, by.Incarnation):
			next.Contributors = append(next.Contributors, by)
			continue
		case s.late[o] >= mostLate:
			return Step{}, false
		}
		if was, ok := s.included(o); ok {
			next.Earlier = append(next.Earlier, was)
		}
	}
	//guard:step-waits-for-trainers
	if len(next.Contributors) < max(1, len(runners)-s.backups) {
		return Step{}, false
	}
	slices.SortFunc(next.Contributors, func(a, b Contributor) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	return next, true
}

// answer fills in what became of a stage.
func (s *steps) answer(st *staging) {
	st.committed = s.last.Version
	st.included = s.includes(st.version, st.trainer, st.incarnation)
}

// includes says whether a trainer's gradients of version are in the version after it, as
// far as that is known: it is for the last one that the trainer had a part in.
func (s *steps) includes(version uint64, o taskqueue.Ordinal, incarnation uint64) bool {
	was, ok := s.included(o)
	return ok && was.Incarnation == incarnation && was.Version == version+1
}

// included is the last version that a trainer had a part in.
func (s *steps) included(o taskqueue.Ordinal) (Inclusion, bool) {
	for _, by := range s.last.Contributors {
		if by.Ordinal == o {
			return Inclusion{o, by.Incarnation, s.last.Version}, true
		}
	}
	for _, was := range s.last.Earlier {
		if was.Ordinal == o {
			return was, true
		}
	}
	return Inclusion{}, false
}

var errAhead = errors.New("the trainer is ahead")

// overtaken is the step that the servers have come to when they know of a later one than the last one here: etcd was lost, or
// went back, and an earlier life of the job made it. It has no contributors: nobody knows them any more.
func (s *steps) overtaken(epoch uint32) (Step, bool) {
	return Step{Version: s.reached, Epoch: epoch}, s.reached > s.last.Version
}

// catchUp finds out how far the parameters are when a trainer has staged at a version that this job does not know of.
func (m *Master) catchUp(ctx context.Context, t *term, version uint64) error {
	if err := t.catching.take(ctx); err != nil { // one asks for all
		return err
	}
	defer t.catching.give()
	var last uint64
	if err := t.inspect(ctx, func(*taskqueue.Queue) { last = t.committer.steps.last.Version }); err != nil || version <= last {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	reached, err := m.shards.Version(bounded)
	if err != nil {
		return fmt.Errorf("staged at version %d, and only version %d is known: ask the parameter servers: %w", version, last, err)
	}
	return t.found(ctx, reached)
}

// found goes on from the version that a server was found to have, if it is later than the last one here. This term's own steps are
// committed before any server hears of them, so that none of them is taken for one of an earlier life.
func (t *term) found(ctx context.Context, reached uint64) error {
	_, err := t.committer.do(ctx, func(o *op) { o.reached = reached })
	return err
}

// commit makes a step the last one.
func (s *steps) commit(step Step) {
	s.last = step
	for _, by := range step.Contributors {
		delete(s.late, by.Ordinal)
	}
	clear(s.staged)
}

// rewound makes a step the last one, and forgets what was staged.
func (s *steps) rewound(step Step) {
	s.last = step
	clear(s.staged)
	clear(s.late)
}

// hand gives a step to the one who tells the parameter servers, in the place of one that
// was not taken yet: gradients are only staged at a version that every server has reached,
// so nobody needs that one any more. It never blocks; only one goroutine may hand.
func hand(steps chan Step, step Step) {
	for {
		select {
		case steps <- step:
			return
		default:
		}
		select {
		case <-steps:
		default:
		}
	}
}

// Encode returns the value of StepKey.
func (s Step) Encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // numbers always encode
	}
	return b
}
