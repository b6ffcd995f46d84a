package strategy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"trainmaster/master/evaluation/metric"
	"trainmaster/taskqueue"
)

// LearningRate is the hyper-parameter that the parameter servers have, in a job with parameter servers. Other hyper-parameters are for
// trainers.
const LearningRate = "learning-rate"

// KeptDecisions is the number of decisions in the state.
const KeptDecisions = 16

// OfJob returns the strategy of a file for the queue of a job. servers reports that the job has parameter servers.
func (s *Strategy) OfJob(file []byte, servers bool) *taskqueue.Strategy {
	t := &taskqueue.Strategy{File: file, Begin: func(stored []byte) (taskqueue.Steering, error) {
		state, err := DecodeState(stored)
		if err != nil {
			return nil, err
		}
		state.strategy, state.servers = s, servers
		state.uses = slices.ContainsFunc(s.Stop, func(r Rule) bool { return r.isStatistic() })
		state.clocked = slices.ContainsFunc(s.Stop, func(r Rule) bool { return r.Name == "job.seconds" })
		return state.derived(), nil
	}}
	if s.Population != nil {
		t.Population = s.Population.ofJob
	}
	return t
}

// State is the state of a strategy in a job. It implements [taskqueue.Steering].
type State struct {
	History History
	Notes   Notes

	strategy *Strategy
	servers  bool               // the job has parameter servers
	uses     bool               // a rule is about statistics
	clocked  bool               // a rule is about the job clock
	trainers map[string]float64 // derived: the values for trainers
}

// Notes are what a job has stored besides the history.
type Notes struct {
	OwnRate   float32                      `json:"own_rate,omitempty"` // learning rate of the parameter servers before their schedule; 0: not known
	Reasons   map[string]string            `json:"reasons,omitempty"`  // of the values, by hyper-parameter
	Decisions []taskqueue.StrategyDecision `json:"decisions,omitempty"`
}

// Encode implements [taskqueue.Steering]: the history, a line feed and the notes.
func (s State) Encode() []byte {
	b, err := json.Marshal(s.Notes)
	if err != nil {
		panic(err) // all numbers are finite
	}
	return append(append(s.History.Encode(), '\n'), b...)
}

// DecodeState reads an encoded state, without its strategy. nil is the state of a job that begins.
func DecodeState(b []byte) (s State, err error) {
	if b == nil {
		return s, nil
	}
	history, notes, ok := bytes.Cut(b, []byte("\n"))
	if !ok {
		return State{}, fmt.Errorf("%w: expected a history, a line feed and notes", ErrDamaged)
	}
	if s.History, err = DecodeHistory(history); err != nil {
		return State{}, err
	}
	if err := json.Unmarshal(notes, &s.Notes); err != nil {
		return State{}, fmt.Errorf("%w: notes: %w", ErrDamaged, err)
	}
	if rate := float64(s.Notes.OwnRate); rate < 0 || math.IsNaN(rate) || math.IsInf(rate, 0) {
		return State{}, fmt.Errorf("%w: own_rate: expected a number above 0, found %v", ErrDamaged, rate)
	}
	return s, nil
}

// derived returns the state with the values for trainers.
func (s State) derived() State {
	s.trainers = map[string]float64{}
	for name, v := range s.History.Parameters {
		//guard:servers-have-the-learning-rate
		if name != LearningRate || !s.servers {
			s.trainers[name] = v.Value
		}
	}
	return s
}

// Observe implements [taskqueue.Steering].
func (s State) Observe(o taskqueue.Observation) (taskqueue.Steering, []taskqueue.StrategyDecision, bool) {
	stats := Stats{
		Step: o.Step, Passes: o.Passes, Records: o.Statistics.Records, RecordsPerSecond: o.Statistics.RecordsPerSecond(),
		PeakMemoryBytes: o.Statistics.PeakMemoryBytes(), GPUUtilization: o.Statistics.GPUUtilization(),
	}
	if o.Round != nil {
		stats.Round = o.Round.Number
		for _, name := range slices.Sorted(maps.Keys(o.Round.Figures)) {
			stats.Figures = append(stats.Figures, metric.Figure{Name: name, Value: o.Round.Figures[name]})
		}
	}
	history, decisions := s.strategy.Decide(o.Clock, s.History, stats)
	if len(decisions) == 0 && history.Round == s.History.Round {
		return s, nil, false
	}
	next := s
	next.History, next.Notes.Reasons = history, maps.Clone(s.Notes.Reasons)
	if next.Notes.Reasons == nil {
		next.Notes.Reasons = map[string]string{}
	}
	list := make([]taskqueue.StrategyDecision, len(decisions))
	for i, d := range decisions {
		list[i] = taskqueue.StrategyDecision{Parameter: d.Parameter, Value: d.Value, Reason: d.Reason, Step: o.Step, Passes: o.Passes, Clock: o.Clock}
		if d.Parameter != "" {
			next.Notes.Reasons[d.Parameter] = d.Reason
		}
	}
	all := slices.Concat(s.Notes.Decisions, list)
	//guard:decisions-bounded
	next.Notes.Decisions = all[max(0, len(all)-KeptDecisions):]
	return next.derived(), list, true
}

// Stopped implements [taskqueue.Steering].
func (s State) Stopped() string {
	if s.History.Stopped == "" {
		return ""
	}
	return taskqueue.StoppedByStrategy + ": " + s.History.Stopped
}

// ForTrainers implements [taskqueue.Steering].
func (s State) ForTrainers() map[string]float64 { return s.trainers }

// smallestScale is the factor of a learning rate of 0: a factor of 0 means that there is none.
const smallestScale = 1e-20

// Rate implements [taskqueue.Steering].
func (s State) Rate() (rate, scale float32, known, steers bool) {
	if _, steers = s.strategy.Schedules[LearningRate]; !steers || !s.servers {
		return 0, 0, false, false
	}
	v, decided := s.History.Parameters[LearningRate]
	if s.Notes.OwnRate == 0 || !decided {
		return 0, 0, false, true
	}
	//guard:rate-relative-to-the-servers
	scale = float32(v.Value / float64(s.Notes.OwnRate))
	//guard:rate-above-zero
	return float32(v.Value), min(max(scale, smallestScale), math.MaxFloat32), true, true
}

// WithRate implements [taskqueue.Steering].
func (s State) WithRate(own float32) taskqueue.Steering {
	s.Notes.OwnRate = own
	return s
}

// UsesStatistics implements [taskqueue.Steering].
func (s State) UsesStatistics() bool { return s.uses }

// UsesClock implements [taskqueue.Steering].
func (s State) UsesClock() bool { return s.clocked }

// Overview implements [taskqueue.Steering].
func (s State) Overview() (o taskqueue.StrategyOverview) {
	for _, name := range slices.Sorted(maps.Keys(s.History.Parameters)) {
		o.Parameters = append(o.Parameters, taskqueue.HyperParameter{Name: name, Value: s.History.Parameters[name].Value, Reason: s.Notes.Reasons[name]})
	}
	o.Decisions = s.Notes.Decisions
	return o
}
