package taskqueue

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// RateChange is a factor of the learning rate of parameter servers, on top of the schedule of their optimizer.
type RateChange struct {
	Number uint64 // of this change, from 1
	// From is the first version of a synchronous job that is made with the factor. A version that a rollback undoes is made again with
	// the factors of the first time. 0: the job is asynchronous, and servers use the factor from their next update on.
	From  uint64
	Scale float32
	Rate  float32 // learning rate before the schedule, for people
}

// maxRates is the number of changes that a rollback may have to repeat. A complete checkpoint set removes the changes before it.
const maxRates = 64

// Errors of SetJob.
var (
	ErrBadSetting   = errors.New("job setting")
	ErrTooManyRates = errors.New("too many changes of the learning rate since the last checkpoint set")
)

// SetJob changes settings of a running job, all or none of them. The ledger records each change. Answer.Version is the first version of
// a synchronous job with the new learning rate.
type SetJob struct {
	Scale   float32 // factor of the learning rate of parameter servers; 0: unchanged
	Rate    float32 // learning rate before the schedule, for people
	Weights map[string]int
}

func (ev *SetJob) apply(q *Queue) Answer {
	if q.hasEnded() {
		return Answer{Err: fmt.Errorf("%w: it is %s", ErrJobOver, q.status)}
	}
	if err := ev.check(q); err != nil {
		return Answer{Err: err}
	}
	for _, name := range slices.Sorted(maps.Keys(ev.Weights)) {
		q.setWeight(q.named(name), ev.Weights[name])
	}
	if ev.Scale == 0 {
		return Answer{}
	}
	return Answer{Version: q.setRate(ev.Scale, ev.Rate)}
}

func (q *Queue) trainingNames() (names []string) {
	for _, s := range q.sets {
		if s.kind == Training {
			names = append(names, s.name)
		}
	}
	return names
}

func (ev *SetJob) check(q *Queue) error {
	for name, weight := range ev.Weights {
		s := q.named(name)
		if s == nil || s.kind != Training {
			return fmt.Errorf("%w: weight.%s: expected the name of a training dataset of the job; %s", ErrBadSetting, name, some("there are", "there is none", q.trainingNames()))
		}
		if weight < 1 || weight > MaxWeight {
			return fmt.Errorf("%w: weight.%s: expected 1 to %d, found %d", ErrBadSetting, name, MaxWeight, weight)
		}
	}
	//guard:factor-without-underflow
	if (ev.Scale != 0 || ev.Rate != 0) && !validScale(ev.Scale) {
		return fmt.Errorf("%w: learning-rate: expected a factor above 0, found %v", ErrBadSetting, ev.Scale)
	}
	if ev.Scale != 0 && q.steering != nil {
		//guard:strategy-has-the-learning-rate
		if _, _, _, steers := q.steering.Rate(); steers {
			return fmt.Errorf("%w: learning-rate: expected no change of it, because the strategy of the job has it", ErrBadSetting)
		}
	}
	if ev.Scale != 0 && len(q.ratesBefore(q.nextVersion())) >= maxRates {
		return fmt.Errorf("%w: expected at most %d: wait for the next set", ErrTooManyRates, maxRates)
	}
	return nil
}

func validScale(scale float32) bool { return scale > 0 && !math.IsInf(float64(scale), 0) }

// setWeight changes the weight of a dataset. The balances are of the weights before: they start again.
func (q *Queue) setWeight(s *set, weight int) {
	if s.weight == weight {
		return
	}
	//guard:new-weight-clears-credits
	for _, other := range q.sets {
		other.credit = 0
	}
	s.weight, q.dirty = weight, true
	q.ledger.weighted(s)
	q.notice(false, "weight of a dataset changed", map[string]any{"dataset": s.name, "weight": weight})
}

// setRate adds a change. It replaces the changes from its version on: after a rollback, a new request counts more than the requests for
// undone versions.
func (q *Queue) setRate(scale, rate float32) (from uint64) {
	from = q.nextVersion()
	if n := len(q.rates); q.rateAt(from).Scale == scale && (n == 0 || q.rates[n-1].From <= from) {
		return from
	}
	q.changeRate(q.ratesBefore(from), from, scale, rate)
	q.notice(false, "learning rate changed", map[string]any{"rate": rate, "scale": scale, "version": from})
	return from
}

// changeRate adds a change from a version on to the changes that are kept.
func (q *Queue) changeRate(kept []RateChange, from uint64, scale, rate float32) {
	q.rateNumber++
	change := RateChange{q.rateNumber, from, scale, rate}
	q.rates, q.dirty = append(kept, change), true
	q.ledger.rated(change)
	if q.sync == nil {
		q.raise(RateChanged{change})
	}
}

// nextVersion is the version of the next synchronous step; 0 in an asynchronous job.
func (q *Queue) nextVersion() uint64 {
	if q.sync == nil {
		return 0
	}
	return q.sync.last.Version + 1
}

// ratesBefore returns the changes of versions before the given one.
func (q *Queue) ratesBefore(version uint64) []RateChange {
	i := slices.IndexFunc(q.rates, func(r RateChange) bool { return r.From >= version })
	if i < 0 {
		i = len(q.rates)
	}
	return slices.Clone(q.rates[:i])
}

// rateAt returns the change with which a version is made. Without a change, the factor is 1.
func (q *Queue) rateAt(version uint64) RateChange {
	for _, r := range slices.Backward(q.rates) {
		if r.From <= version {
			return r
		}
	}
	return RateChange{Scale: 1}
}

// LearningRate returns the change that the next update uses. Without a change, the number is 0.
func (q *Queue) LearningRate() RateChange {
	if q.sync == nil {
		return q.rateAt(math.MaxUint64)
	}
	return q.rateAt(q.nextVersion())
}

// forgetRates removes the changes that no version after the given one uses: the job cannot roll back to an earlier version.
func (q *Queue) forgetRates(version uint64) {
	//guard:rates-since-the-set-kept
	for len(q.rates) > 1 && q.rates[1].From <= version+1 {
		q.rates = q.rates[1:]
	}
}

// checkRates checks stored changes.
func checkRates(rates []RateChange, number uint64) error {
	for i, r := range rates {
		if r.Number == 0 || r.Number > number || !validScale(r.Scale) || i >= maxRates || i > 0 && r.From <= rates[i-1].From {
			return fmt.Errorf("learning rate %d of %d: number %d of %d, version %d, factor %v", i, len(rates), r.Number, number, r.From, r.Scale)
		}
	}
	return nil
}
