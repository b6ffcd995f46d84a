package view

import (
	"strings"
	"testing"
	"time"

	"trainmaster/master/rounds"
)

// The line of a round names a figure of --best-metric that the round does not have.
func TestRoundWithoutTheFigureOfTheBestMetric(t *testing.T) {
	e := Evaluation{Record: rounds.Record{Round: 1, Passes: 1, Ended: new(time.Now()), Figures: map[string]float64{"accuracy": 0.5}, Outcome: "no figure acuracy"}}
	if text := e.line(); !strings.Contains(text, "accuracy 0.5000  (no figure acuracy: check --best-metric)") {
		t.Errorf("found %q", text)
	}
}
