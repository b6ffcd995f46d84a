package strategy

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"trainmaster/taskqueue"
)

// Rule is a condition that ends the job: a name, a comparison and a number.
type Rule struct {
	Name  string // a figure of the newest round, or a statistic of the job, which begins with "job."
	Op    string // ">", ">=", "<" or "<="
	Limit float64
}

func (r Rule) String() string { return fmt.Sprintf("%s %s %v", r.Name, r.Op, r.Limit) }

// statistics has the names of the statistics of a job.
var statistics = []struct {
	name  string
	value func(now taskqueue.Clock, s *Stats) float64
}{
	{"job.step", func(_ taskqueue.Clock, s *Stats) float64 { return float64(s.Step) }},
	{"job.passes", func(_ taskqueue.Clock, s *Stats) float64 { return float64(s.Passes) }},
	{"job.seconds", func(now taskqueue.Clock, _ *Stats) float64 { return float64(now) / 1000 }},
	{"job.records", func(_ taskqueue.Clock, s *Stats) float64 { return float64(s.Records) }},
	{"job.records-per-second", func(_ taskqueue.Clock, s *Stats) float64 { return s.RecordsPerSecond }},
	{"job.peak-memory-bytes", func(_ taskqueue.Clock, s *Stats) float64 { return s.PeakMemoryBytes }},
	{"job.gpu-utilization", func(_ taskqueue.Clock, s *Stats) float64 { return s.GPUUtilization }},
}

// parseRule reads a rule such as "accuracy >= 0.99".
func parseRule(text string) (Rule, error) {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return Rule{}, fmt.Errorf(`expected a name, a comparison and a number, such as "accuracy >= 0.99", found %q`, text)
	}
	r := Rule{Name: fields[0], Op: fields[1]}
	switch r.Op {
	case ">", ">=", "<", "<=":
	default:
		return Rule{}, fmt.Errorf(`expected ">", ">=", "<" or "<=", found %q`, r.Op)
	}
	var err error
	if r.Limit, err = strconv.ParseFloat(fields[2], 64); err != nil || math.IsNaN(r.Limit) || math.IsInf(r.Limit, 0) {
		return Rule{}, fmt.Errorf("expected a finite number, found %q", fields[2])
	}
	if !strings.HasPrefix(r.Name, "job.") {
		return r, nil
	}
	var names []string
	for _, s := range statistics {
		if s.name == r.Name {
			return r, nil
		}
		names = append(names, s.name)
	}
	return Rule{}, fmt.Errorf("expected one of %s, found %q", strings.Join(names, ", "), r.Name)
}

// holds reports whether the condition is true, with the compared value. A figure that the round does not have fulfills no condition.
func (r Rule) holds(now taskqueue.Clock, stats *Stats) (value float64, ok bool) {
	value, ok = stats.figure(r.Name)
	for _, s := range statistics {
		if s.name == r.Name {
			value, ok = s.value(now, stats), true
		}
	}
	if !ok {
		return 0, false
	}
	switch r.Op {
	case ">":
		return value, value > r.Limit
	case ">=":
		return value, value >= r.Limit
	case "<":
		return value, value < r.Limit
	default:
		return value, value <= r.Limit
	}
}

// isStatistic reports whether the rule is about what trainers report with finished tasks.
func (r Rule) isStatistic() bool {
	return slices.Contains([]string{"job.records", "job.records-per-second", "job.peak-memory-bytes", "job.gpu-utilization"}, r.Name)
}
