package strategy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"trainmaster/master/evaluation/metric"
	"trainmaster/taskqueue"
)

// Strategy has the schedules and stop rules of a file.
type Strategy struct {
	Schedules map[string]Schedule // by hyper-parameter
	Stop      []Rule

	Population *Population // nil: none
}

// NeedsSteps returns a hyper-parameter or a rule that depends on versions of the parameters, if there is one.
func (s *Strategy) NeedsSteps() (name string, ok bool) {
	return s.first(func(c Schedule) bool { return c.Shape == Step || c.Shape == Cosine || c.WarmUp > 0 }, func(r Rule) bool { return r.Name == "job.step" })
}

// NeedsRounds returns a hyper-parameter or a rule that depends on figures of evaluation rounds, if there is one.
func (s *Strategy) NeedsRounds() (name string, ok bool) {
	return s.first(func(c Schedule) bool { return c.Shape == Plateau }, func(r Rule) bool { return !strings.HasPrefix(r.Name, "job.") })
}

// Figures returns the figures of evaluation rounds by which plateaus and rules decide, with the first hyper-parameter or rule of each.
func (s *Strategy) Figures() map[string]string {
	figures := map[string]string{}
	add := func(figure, from string) {
		if _, ok := figures[figure]; !ok {
			figures[figure] = from
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Schedules)) {
		if c := s.Schedules[name]; c.Shape == Plateau {
			add(c.Figure.Figure, name)
		}
	}
	for _, r := range s.Stop {
		if !strings.HasPrefix(r.Name, "job.") {
			add(r.Name, r.String())
		}
	}
	return figures
}

// HasPlateau returns a hyper-parameter with a plateau, if there is one.
func (s *Strategy) HasPlateau() (name string, ok bool) {
	return s.first(func(c Schedule) bool { return c.Shape == Plateau }, func(Rule) bool { return false })
}

// first returns the first schedule by name, or else the first rule, that fulfills a condition.
func (s *Strategy) first(schedule func(Schedule) bool, rule func(Rule) bool) (name string, ok bool) {
	for _, name := range slices.Sorted(maps.Keys(s.Schedules)) {
		if schedule(s.Schedules[name]) {
			return name, true
		}
	}
	if i := slices.IndexFunc(s.Stop, rule); i >= 0 {
		return s.Stop[i].String(), true
	}
	return "", false
}

// Stats is what the caller observes. NaN is a statistic without a value: it fulfills no condition.
type Stats struct {
	Step             uint64  // newest version of the parameters
	Passes           uint64  // that have ended
	Records          uint64  // trained
	RecordsPerSecond float64 // mean speed of a trainer
	PeakMemoryBytes  float64 // the largest of all trainers
	GPUUtilization   float64 // mean, 0 to 1

	Round   uint64          // number of the newest evaluation round that has ended; 0: none
	Figures []metric.Figure // of that round
}

// figure returns a figure of the newest round.
func (s *Stats) figure(name string) (float64, bool) {
	for _, f := range s.Figures {
		if f.Name == name {
			return f.Value, true
		}
	}
	return 0, false
}

// History is the state of a strategy. The zero value has no decisions.
type History struct {
	Round      uint64           `json:"round,omitempty"` // newest round that was considered
	Parameters map[string]Value `json:"parameters,omitempty"`
	Stopped    string           `json:"stopped,omitempty"` // reason
}

// Value is the newest value of a hyper-parameter.
type Value struct {
	Value      float64  `json:"value"`
	Reductions int      `json:"reductions,omitempty"` // of a plateau
	Best       *float64 `json:"best,omitempty"`       // figure of a plateau
	Since      int      `json:"since,omitempty"`      // rounds without a better figure, since the best one or a reduction
}

// Decision is a new value of a hyper-parameter, or the end of the job, with the reason.
type Decision struct {
	Parameter string // "": end the job
	Value     float64
	Reason    string
}

// Decide returns the next history and what changes. now is the job clock. After the end of the job was decided, nothing changes.
func (s *Strategy) Decide(now taskqueue.Clock, h History, stats Stats) (History, []Decision) {
	if h.Stopped != "" {
		return h, nil
	}
	var decisions []Decision
	next := History{Round: max(h.Round, stats.Round), Parameters: map[string]Value{}}
	for _, name := range slices.Sorted(maps.Keys(s.Schedules)) {
		schedule := s.Schedules[name]
		v, there := h.Parameters[name]
		//guard:round-reduces-once
		if schedule.Shape == Plateau && stats.Round > h.Round {
			schedule.consider(&v, &stats)
		}
		value, reason := schedule.at(stats.Step, v.Reductions)
		if !there || value != v.Value {
			decisions = append(decisions, Decision{name, value, reason})
		}
		v.Value = value
		next.Parameters[name] = v
	}
	for _, rule := range s.Stop {
		if found, ok := rule.holds(now, &stats); ok {
			next.Stopped = fmt.Sprintf("%s: %s is %v", rule, rule.Name, found)
			decisions = append(decisions, Decision{Reason: next.Stopped})
			break
		}
	}
	return next, decisions
}

// consider counts a round for a plateau. A round without the figure counts nothing.
func (s *Schedule) consider(v *Value, stats *Stats) {
	figure, ok := stats.figure(s.Figure.Figure)
	if !ok {
		return
	}
	if v.Best == nil || figure != *v.Best && (figure > *v.Best) == s.Figure.Max {
		v.Best, v.Since = &figure, 0
		return
	}
	if v.Since++; v.Since >= s.Patience {
		v.Since = 0
		v.Reductions++
	}
}
