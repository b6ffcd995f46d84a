package master

import (
	"cmp"
	"encoding/json"
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
}

// Contributor is one trainer's part in a step.
type Contributor struct {
	Ordinal     taskqueue.Ordinal `json:"ordinal"`
	Incarnation uint64            `json:"incarnation"`
	Records     int               `json:"records"`
}

// steps decides when a synchronous step is complete: when every trainer on whose task the
// clock runs has staged its gradients of the current version. A trainer between two tasks
// is no contributor, so the pass barrier and the step never wait for each other.
type steps struct {
	last   Step
	staged map[taskqueue.Ordinal]Contributor
}

func newSteps(stored []byte) (*steps, error) {
	s := &steps{staged: map[taskqueue.Ordinal]Contributor{}}
	if stored != nil {
		if err := json.Unmarshal(stored, &s.last); err != nil {
			return nil, fmt.Errorf("read %s: %w", StepKey, err)
		}
	}
	return s, nil
}

// stage takes a report that all shards hold a trainer's gradients of a version. It returns
// false when that version is committed already.
func (s *steps) stage(version uint64, by Contributor) (current bool, err error) {
	switch {
	case version < s.last.Version:
		return false, nil
	case version > s.last.Version:
		return false, fmt.Errorf("staged at version %d: expected at most %d, the last committed one", version, s.last.Version)
	case by.Records <= 0 || by.Records > math.MaxUint32:
		return false, fmt.Errorf("staged %d records: expected 1 to %d", by.Records, uint32(math.MaxUint32))
	}
	s.staged[by.Ordinal] = by
	return true, nil
}

// complete returns the next step once all runners have staged. Those who staged and run no
// more (lost, or timed out) are left out.
func (s *steps) complete(runners []taskqueue.Ordinal, epoch uint32) (Step, bool) {
	if len(runners) == 0 {
		return Step{}, false
	}
	next := Step{Version: s.last.Version + 1, Epoch: epoch}
	for _, o := range runners {
		by, ok := s.staged[o]
		if !ok {
			return Step{}, false
		}
		next.Contributors = append(next.Contributors, by)
	}
	slices.SortFunc(next.Contributors, func(a, b Contributor) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	return next, true
}

// answer fills in what became of a stage.
func (s *steps) answer(st *staging) {
	st.committed = s.last.Version
	st.included = s.last.Version == st.version+1 && slices.ContainsFunc(s.last.Contributors, func(by Contributor) bool {
		return by.Ordinal == st.trainer && by.Incarnation == st.incarnation
	})
}

// commit makes a step the last one.
func (s *steps) commit(step Step) {
	s.last = step
	clear(s.staged)
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

func (s Step) encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // numbers always encode
	}
	return b
}
