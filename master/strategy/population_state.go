package strategy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"trainmaster/taskqueue"
)

// PopulationState is the state of a population in a job. It implements [taskqueue.Population].
type PopulationState struct {
	Generations

	settings *Population
	job      [16]byte
}

// ofJob returns the population of a job with its stored state; nil: of a job that begins.
func (p *Population) ofJob(stored []byte, job [16]byte) (taskqueue.Population, error) {
	s, err := DecodePopulation(stored)
	s.settings, s.job = p, job
	return s, err
}

type encodedPopulation struct {
	Format int    `json:"format"`
	Figure string `json:"figure"`
	Generations
}

// Encode implements [taskqueue.Population], as JSON.
func (s PopulationState) Encode() []byte {
	b, err := json.Marshal(encodedPopulation{Format, s.settings.Figure.String(), s.Generations})
	if err != nil {
		panic(err) // all numbers are finite
	}
	return b
}

// DecodePopulation reads an encoded state, for Encode and Overview. nil is the state of a job that begins.
func DecodePopulation(b []byte) (s PopulationState, err error) {
	if b == nil {
		return s, nil
	}
	e := encodedPopulation{}
	if err := json.Unmarshal(b, &e); err != nil {
		return s, fmt.Errorf("%w: population: %w", ErrDamaged, err)
	}
	if e.Format > Format {
		return s, fmt.Errorf("%w: population: format: expected at most %d, found %d", ErrDamaged, Format, e.Format)
	}
	//guard:population-state-strict
	if again, err := json.Marshal(e); err != nil || !bytes.Equal(again, b) || e.Format != Format {
		return s, fmt.Errorf("%w: population: expected the form that this version writes", ErrDamaged)
	}
	if !slices.IsSortedFunc(e.Members, func(a, b Member) int { return bytes.Compare([]byte(a.ID), []byte(b.ID)) }) || len(e.Members) > MaxMembers {
		return s, fmt.Errorf("%w: population: expected at most %d members by name, found %d", ErrDamaged, MaxMembers, len(e.Members))
	}
	s.Generations = e.Generations
	s.settings = &Population{}
	if err := s.settings.setFigure(e.Figure); err != nil {
		return s, fmt.Errorf("%w: population: %w", ErrDamaged, err)
	}
	return s, nil
}

// Observe implements [taskqueue.Population].
func (s PopulationState) Observe(o taskqueue.PopulationObservation) (taskqueue.Population, []taskqueue.PopulationDecision, bool) {
	next, decisions, isChanged := s.settings.Decide(s.job, s.Generations, o)
	if !isChanged {
		return s, nil, false
	}
	s.Generations = next
	return s, decisions, true
}

// change returns the state with another state of a member.
func (s PopulationState) change(at int, to Member) PopulationState {
	s.Members = slices.Clone(s.Members)
	s.Members[at] = to
	return s
}

// Dispatched implements [taskqueue.Population].
func (s PopulationState) Dispatched(trainer string, task taskqueue.Token, others []taskqueue.Token) (taskqueue.Population, bool) {
	at := slices.IndexFunc(s.Members, func(m Member) bool { return m.ID == trainer })
	if at < 0 {
		return s, false
	}
	m := s.Members[at]
	//guard:model-comes-with-one-task
	if m.Order == nil || m.Order.Task != nil && slices.Contains(others, *m.Order.Task) {
		return s, false
	}
	order := *m.Order
	order.Task, m.Order = &task, &order
	return s.change(at, m), true
}

// Finished implements [taskqueue.Population].
func (s PopulationState) Finished(trainer string, r *taskqueue.Result) (taskqueue.Population, bool) {
	isChanged := false
	for i, m := range s.Members {
		before := m
		if o := m.Order; o != nil && o.Task != nil && *o.Task == r.Token {
			m.Order, m.From, m.FromOf, m.Note = nil, o.From, o.Generation, ""
			//guard:kept-model-is-no-other-model
			if r.Kept != "" {
				m.From, m.FromOf, m.Note = before.From, before.FromOf, "keeps its model: "+clip(r.Kept)
			}
		}
		if path := r.Model.Path; m.ID == trainer && path != "" && len(path) <= taskqueue.MaxModelPath && utf8.ValidString(path) {
			m.Path = path
		}
		if m.Order != before.Order || m.Path != before.Path {
			s, isChanged = s.change(i, m), true
		}
	}
	return s, isChanged
}

// ForTask implements [taskqueue.Population].
func (s PopulationState) ForTask(trainer string, task taskqueue.Token) (values map[string]float64, from taskqueue.ModelSource) {
	m := s.member(trainer)
	if m == nil {
		return s.settings.initial(s.job, trainer), from
	}
	//guard:model-is-for-one-trainer
	if o := m.Order; o != nil && o.Task != nil && *o.Task == task {
		from = taskqueue.ModelSource{Path: o.Path}
		if o.Path == "" {
			from.Address, from.Ordinal = o.Address, o.Ordinal
		}
	}
	return m.Values, from
}

// Wanted implements [taskqueue.Population].
func (s PopulationState) Wanted() (trainer string, generation uint64) {
	for _, m := range s.Members {
		if m.Awaits {
			return m.ID, s.Number
		}
	}
	return "", 0
}

// Ranking implements [taskqueue.Population].
func (s PopulationState) Ranking() []string { return s.settings.ranking(&s.Generations) }

// Overview implements [taskqueue.Population].
func (s PopulationState) Overview() taskqueue.PopulationOverview {
	o := taskqueue.PopulationOverview{Generation: s.Number, Open: s.Open, Figure: s.settings.Figure.String(), Decisions: s.Decisions}
	for _, m := range s.Members {
		v := taskqueue.PopulationMember{
			Trainer: m.ID, Values: maps.Clone(m.Values), Figure: m.Figure, From: m.From, FromGeneration: m.FromOf, Note: m.Note,
		}
		if m.Figure != nil {
			v.FigureGeneration = m.Generation
		}
		if m.Order != nil {
			v.Next = m.Order.From
		}
		o.Members = append(o.Members, v)
	}
	return o
}
