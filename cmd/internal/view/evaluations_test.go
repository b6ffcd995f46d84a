package view

import (
	"strings"
	"testing"
	"time"

	"trainmaster/master/rounds"
	pb "trainmaster/proto/trainmaster/v1"
)

// The line of a round names a figure of --best-metric that the round does not have.
func TestRoundWithoutTheFigureOfTheBestMetric(t *testing.T) {
	e := Evaluation{Record: rounds.Record{Round: 1, Passes: 1, Ended: new(time.Now()), Figures: map[string]float64{"accuracy": 0.5}, Outcome: "no figure acuracy"}}
	if text := e.line(); !strings.Contains(text, "accuracy 0.5000  (no figure acuracy: check --best-metric)") {
		t.Errorf("found %q", text)
	}
}

// The progress of a job that a rule has ended names the pass, not 100%.
func TestProgressOfAJobThatEndedEarly(t *testing.T) {
	for pass, want := range map[uint32]string{2: "ended early in pass 2", 3: "100%"} {
		s := NewStatus(&pb.StatusReply{Status: pb.JobStatus_JOB_STATUS_ENDED, Datasets: []*pb.DatasetStatus{{Pass: pass, Passes: 3, Tasks: 10, Done: 10 * (uint64(pass) - 2)}}, Totals: &pb.JobTotals{}})
		if text := s.progressText(); !strings.Contains(text, want) {
			t.Errorf("in pass %d of 3: found %q, expected %q", pass, text, want)
		}
	}
}
