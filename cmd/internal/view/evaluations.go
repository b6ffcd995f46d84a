package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master/rounds"
)

// Evaluation is an evaluation round of a job.
type Evaluation struct {
	rounds.Record
	Best bool `json:"best"` // its model is the best so far
}

// Evaluations reads the records of rounds, by key, in the order of their numbers. best is the number of the best round.
func Evaluations(values map[string][]byte, best uint64) ([]Evaluation, error) {
	list := []Evaluation{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		var e Evaluation
		if err := json.Unmarshal(values[key], &e.Record); err != nil {
			return nil, fmt.Errorf("%s: expected JSON, found %.80q: %w", key, values[key], err)
		}
		e.Best = e.Round == best && best > 0
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Evaluation) int { return cmp.Compare(a.Round, b.Round) })
	return list, nil
}

// figures lists the figures: accuracy and loss first.
func (e Evaluation) figures() string {
	if e.Ended == nil {
		return "open"
	}
	if len(e.Figures) == 0 {
		if e.Trainer != "" && e.Outcome != "" {
			return "no results: " + e.Outcome
		}
		return "no results"
	}
	first := []string{"loss", "accuracy"} // the last of them first
	names := slices.SortedFunc(maps.Keys(e.Figures), func(a, b string) int {
		return cmp.Or(slices.Index(first, b)-slices.Index(first, a), strings.Compare(a, b))
	})
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %.4f", name, e.Figures[name]))
	}
	if e.SetAside > 0 {
		parts = append(parts, fmt.Sprintf("(set-aside tasks: %d)", e.SetAside))
	}
	return strings.Join(parts, "  ")
}

// line describes a round in the output of a job.
func (e Evaluation) line() string {
	if e.Trainer != "" {
		return fmt.Sprintf("evaluation %d of trainer %s: %s", e.Round, e.Trainer, e.figures())
	}
	text := fmt.Sprintf("evaluation %d after pass %d: %s", e.Round, e.Passes, e.figures())
	//guard:missing-figure-shown
	if len(e.Figures) > 0 && strings.HasPrefix(e.Outcome, "no figure ") {
		text += fmt.Sprintf("  (%s: check --best-metric)", e.Outcome)
	}
	return text
}

// EvaluationsTable writes a row for each round.
func EvaluationsTable(w io.Writer, list []Evaluation) {
	if len(list) == 0 {
		fmt.Fprintln(w, "No evaluation round yet.")
		return
	}
	fmt.Fprintln(w, "ROUND\tPASSES\tVERSION\tMODEL\tBEGAN\tTOOK\tFIGURES")
	for _, e := range list {
		took, best := "-", ""
		if e.Ended != nil {
			took = cli.Span(e.Ended.Sub(e.Began).Seconds())
		}
		if e.Best {
			best = "  best"
		}
		model := e.Model
		if e.Trainer != "" {
			model = "trainer " + e.Trainer
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%s\t%s\t%s\t%s%s\n", e.Round, e.Passes, e.Version, model, e.Began.Local().Format("15:04:05"), took, e.figures(), best)
	}
}
