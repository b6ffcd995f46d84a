package view

import (
	"fmt"
	"io"

	pb "trainmaster/proto/trainmaster/v1"
)

// strategyStatus describes the strategy of a job.
type strategyStatus struct {
	Parameters []hyperParameter   `json:"parameters"`
	Decisions  []strategyDecision `json:"decisions"` // the newest, in their order
}

type hyperParameter struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Reason string  `json:"reason"`
}

type strategyDecision struct {
	Parameter string  `json:"parameter"` // "": the end of the job
	Value     float64 `json:"value"`
	Reason    string  `json:"reason"`
	Step      uint64  `json:"step"`
	Passes    uint64  `json:"passes"`
	Seconds   float64 `json:"job_s"`
}

func newStrategyStatus(in *pb.StrategyStatus) *strategyStatus {
	if in == nil {
		return nil
	}
	s := &strategyStatus{Parameters: []hyperParameter{}, Decisions: []strategyDecision{}}
	for _, p := range in.GetParameters() {
		s.Parameters = append(s.Parameters, hyperParameter{p.GetName(), p.GetValue(), p.GetReason()})
	}
	for _, d := range in.GetDecisions() {
		s.Decisions = append(s.Decisions, strategyDecision{d.GetParameter(), d.GetValue(), d.GetReason(), d.GetStep(), d.GetPasses(), d.GetJobSeconds()})
	}
	return s
}

// shownDecisions is the number of decisions in a table.
const shownDecisions = 3

// rows writes a row for each hyper-parameter, and the last decisions, the newest first.
func (s *strategyStatus) rows(w io.Writer) {
	if s == nil {
		return
	}
	for _, p := range s.Parameters {
		fmt.Fprintf(w, "%s\t%.6g (%s)\n", p.Name, p.Value, p.Reason)
	}
	for i := len(s.Decisions) - 1; i >= max(0, len(s.Decisions)-shownDecisions); i-- {
		fmt.Fprintf(w, "decision\t%v\n", s.Decisions[i])
	}
}

func (d strategyDecision) String() string {
	what := fmt.Sprintf("%s %.6g", d.Parameter, d.Value)
	if d.Parameter == "" {
		what = "end of the job"
	}
	return fmt.Sprintf("%s at step %d, pass %d: %s", what, d.Step, d.Passes, d.Reason)
}
