package view

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	pb "trainmaster/proto/trainmaster/v1"
)

// populationStatus describes the population of a job.
type populationStatus struct {
	Generation uint64               `json:"generation"` // newest; 0: none has begun
	Open       bool                 `json:"open"`       // its trainers are still to be evaluated
	Figure     string               `json:"figure"`
	Members    []populationMember   `json:"members"`
	Decisions  []populationDecision `json:"decisions"` // the newest, in their order
}

type populationMember struct {
	Trainer          string             `json:"trainer"`
	Values           map[string]float64 `json:"values"`
	Figure           *float64           `json:"figure"` // newest; null: none
	FigureGeneration uint64             `json:"figure_generation"`
	From             string             `json:"from"` // whose model it has continued with; "": of no other trainer
	FromGeneration   uint64             `json:"from_generation"`
	Next             string             `json:"next"` // whose model it receives with a task; "": of no other trainer
	Note             string             `json:"note"`
}

type populationDecision struct {
	Generation uint64  `json:"generation"`
	Trainer    string  `json:"trainer"`
	From       string  `json:"from"`
	Reason     string  `json:"reason"`
	Seconds    float64 `json:"job_s"`
}

func newPopulationStatus(in *pb.PopulationStatus) *populationStatus {
	if in == nil {
		return nil
	}
	s := &populationStatus{Generation: in.GetGeneration(), Open: in.GetOpen(), Figure: in.GetFigure(), Members: []populationMember{}, Decisions: []populationDecision{}}
	for _, m := range in.GetMembers() {
		s.Members = append(s.Members, populationMember{
			m.GetTrainer(), m.GetValues(), m.Figure, m.GetFigureGeneration(), m.GetFrom(), m.GetFromGeneration(), m.GetNext(), m.GetNote(),
		})
	}
	for _, d := range in.GetDecisions() {
		s.Decisions = append(s.Decisions, populationDecision{d.GetGeneration(), d.GetTrainer(), d.GetFrom(), d.GetReason(), d.GetJobSeconds()})
	}
	return s
}

// rows writes a row for the generation, and a row for each trainer.
func (s *populationStatus) rows(w io.Writer) {
	if s == nil {
		return
	}
	state := "begins with the next interval"
	switch {
	case s.Open:
		state = fmt.Sprintf("generation %d, evaluating", s.Generation)
	case s.Generation > 0:
		state = fmt.Sprintf("generation %d", s.Generation)
	}
	fmt.Fprintf(w, "population\t%s, by %s\n", state, s.Figure)
	for _, m := range s.Members {
		fmt.Fprintf(w, "%s\t%v\n", m.Trainer, m)
	}
}

func (m populationMember) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m.Values)) {
		parts = append(parts, fmt.Sprintf("%s %.4g", name, m.Values[name]))
	}
	if m.Figure != nil {
		parts = append(parts, fmt.Sprintf("%.4f in generation %d", *m.Figure, m.FigureGeneration))
	}
	if m.From != "" {
		parts = append(parts, fmt.Sprintf("from %s in generation %d", m.From, m.FromGeneration))
	}
	if m.Next != "" {
		parts = append(parts, "receives the model of "+m.Next)
	}
	if m.Note != "" {
		parts = append(parts, m.Note)
	}
	return strings.Join(parts, ", ")
}
