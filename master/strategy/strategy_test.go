package strategy

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"trainmaster/master/evaluation/metric"
	"trainmaster/taskqueue"
)

var update = flag.Bool("update", false, "write the golden file")

func parse(t testing.TB, file string) *Strategy {
	t.Helper()
	s, err := Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const all = `
hyper-parameters:
  constant: {schedule: constant, value: 0.2}
  cosine: {schedule: cosine, value: 0.1, end: 0.01, steps: 1000, every: 50}
  plateau: {schedule: plateau, value: 1, figure: "loss:min", factor: 0.5, patience: 2, least: 0.2}
  step: {schedule: step, value: 1, steps: 300, factor: 0.1, least: 0.005}
  warm-up: {schedule: cosine, value: 0.1, steps: 500, warm-up: 200, every: 40}
stop:
  - when: job.step >= 2000
`

// The formulas of docs/formats/strategy.md, written once more.
func TestSchedulesFollowTheirFormulas(t *testing.T) {
	s := parse(t, all)
	for step := uint64(0); step < 1990; step += 10 {
		_, decisions := s.Decide(1, History{}, Stats{Step: step})
		found := map[string]float64{}
		for _, d := range decisions {
			found[d.Parameter] = d.Value
		}
		t50, t40, t100 := float64(step/50*50), float64(step/40*40), float64(step/100*100)
		want := map[string]float64{
			"constant": 0.2,
			"cosine":   0.01 + (0.1-0.01)*(1+math.Cos(math.Pi*math.Min(t50, 1000)/1000))/2,
			"plateau":  1,
			"step":     math.Max(0.005, math.Pow(0.1, math.Floor(t100/300))),
			"warm-up":  0.1 * math.Min(1, (t40+40)/200),
		}
		if t40 >= 200 {
			want["warm-up"] = 0.1 * (1 + math.Cos(math.Pi*math.Min(t40-200, 500)/500)) / 2
		}
		for name, v := range want {
			if math.Abs(found[name]-v) > 1e-15 {
				t.Errorf("step %d, %s: expected %v, found %v", step, name, v, found[name])
			}
		}
	}
}

// The golden file has each decision of a job with its reason.
func TestGoldenDecisions(t *testing.T) {
	s := parse(t, all)
	var h History
	var found strings.Builder
	losses := []float64{0.9, 0.8, 0.8, 0.85, 0.7, 0.71, 0.72, 0.73, 0.74, 0.75, 0.76}
	for step := uint64(0); step <= 2200; step += 20 {
		stats := Stats{Step: step, Round: step / 200}
		if stats.Round > 0 {
			stats.Figures = []metric.Figure{{Name: "loss", Value: losses[min(int(stats.Round), len(losses))-1]}}
		}
		// A restart between any two decisions changes nothing.
		restored, err := DecodeHistory(h.Encode())
		if err != nil {
			t.Fatal(err)
		}
		next, decisions := s.Decide(taskqueue.Clock(step), restored, stats)
		if _, same := s.Decide(taskqueue.Clock(step), h, stats); fmt.Sprint(same) != fmt.Sprint(decisions) {
			t.Fatalf("expected %v, found %v", same, decisions)
		}
		h = next
		for _, d := range decisions {
			fmt.Fprintf(&found, "%d %s %.6g (%s)\n", step, d.Parameter, d.Value, d.Reason)
		}
	}
	fmt.Fprintf(&found, "%s\n", h.Encode())
	const file = "testdata/decisions.golden"
	if *update {
		if err := os.WriteFile(file, []byte(found.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if found.String() != string(want) {
		t.Errorf("expected\n%s, found\n%s", want, found.String())
	}
}

func TestRulesOfStatisticsAndFigures(t *testing.T) {
	stats := Stats{
		Step: 10, Passes: 2, Records: 1000, RecordsPerSecond: 50, PeakMemoryBytes: 1 << 30, GPUUtilization: 0.25,
		Round: 1, Figures: []metric.Figure{{Name: "digits.f1", Value: 0.5}},
	}
	for rule, want := range map[string]bool{
		"job.step >= 10": true, "job.step > 10": false, "job.passes >= 3": false, "job.seconds > 59.9": true, "job.seconds < 60": false,
		"job.records <= 1000": true, "job.records-per-second < 51": true, "job.peak-memory-bytes > 1e9": true, "job.gpu-utilization < 0.2": false,
		"digits.f1 >= 0.5": true, "digits.f1 < 0.5": false, "other >= -1": false, "other < 1": false,
	} {
		s := parse(t, "stop: [{when: '"+rule+"'}]")
		h, decisions := s.Decide(60_000, History{}, stats)
		if found := len(decisions) == 1 && decisions[0].Parameter == "" && strings.HasPrefix(h.Stopped, strings.Fields(rule)[0]); found != want {
			t.Errorf("%s: expected %v, found %v (%s)", rule, want, found, h.Stopped)
		}
		if again, more := s.Decide(60_001, h, stats); want && (len(more) > 0 || again.Stopped != h.Stopped) {
			t.Errorf("%s: found decisions after the end of the job: %v", rule, more)
		}
	}
}

func TestErrorsOfAFileHaveTheLine(t *testing.T) {
	// parameter returns a file with a key and a value on each line, from line 3.
	parameter := func(settings ...string) string {
		file := "hyper-parameters:\n  lr:\n"
		for i := 0; i < len(settings); i += 2 {
			file += "    " + settings[i] + ": " + settings[i+1] + "\n"
		}
		return file
	}
	var many strings.Builder
	many.WriteString("hyper-parameters:\n")
	for i := range MaxParameters + 1 {
		fmt.Fprintf(&many, "  p%d: {schedule: constant, value: 1}\n", i)
	}
	for file, words := range map[string]string{
		"":                             "found an empty file",
		"- a":                          "line 1: expected keys and values, found a list",
		"stop: []\nmore: 1":            `line 2: expected "hyper-parameters", "population" or "stop", found the key "more"`,
		"stop: []\nstop: []":           `line 2: key "stop": expected once, found again`,
		"a: [":                         "line 1: ",
		"1: x":                         `line 1: expected a text as the key, found "1"`,
		"stop: x":                      `line 1: stop: expected a list, found "x"`,
		"stop:\n- {}":                  "line 2: expected the key when, found none",
		"stop:\n- if: x":               `line 2: expected when, found the key "if"`,
		"stop:\n- {when: 5}":           `when: expected a text, found "5"`,
		"stop:\n- when: loss":          `when: expected a name, a comparison and a number`,
		"stop:\n- when: loss = 1":      `expected ">", ">=", "<" or "<=", found "="`,
		"stop:\n- when: loss < NaN":    `when: expected a finite number, found "NaN"`,
		"stop:\n- when: job.steps > 1": "expected one of job.step",
		"stop: [" + strings.Repeat("{when: a > 1},", 65) + "]": "expected at most 64 rules, found 65",
		"hyper-parameters: &a\n  lr: *a":                       "line 2: expected keys and values, found an alias",
		"hyper-parameters:\n  a b: {}":                         `expected 1 to 63 letters`,
		many.String():                                          "line 66: expected at most 64 hyper-parameters",

		parameter("value", "1"):                                          "line 3: lr: expected the key schedule",
		parameter("schedule", "linear"):                                  `expected constant, step, cosine or plateau, found "linear"`,
		parameter("schedule", "cosine", "value", "1"):                    "lr: schedule cosine: expected the key steps",
		parameter("schedule", "constant", "value", "1", "factor", "0.5"): "expected no key factor",
		parameter("schedule", "constant", "value", "one"):                `line 4: value: expected a decimal number from -1e100 to 1e100, found "one"`,
		parameter("schedule", "constant", "value", ".inf"):               `line 4: value: expected a decimal number from -1e100 to 1e100, found ".inf"`,
		parameter("schedule", "constant", "value", "1e101"):              `line 4: value: expected a decimal number from -1e100 to 1e100, found "1e101"`,
		parameter("schedule", "constant", "value", `"1"`):                `line 4: value: expected a decimal number from -1e100 to 1e100, found "1"`,

		parameter("schedule", "cosine", "steps", "0"):      "steps: expected an integer",
		parameter("schedule", "cosine", "warm-up", "-5"):   "warm-up: expected an integer",
		parameter("schedule", "step", "factor", "1"):       "line 4: factor",
		parameter("schedule", "plateau", "figure", "loss"): `expected a figure with ":min" or ":max"`,
		parameter("schedule", "plateau", "rate", "1"):      `a key of a schedule, found the key "rate"`,
		strings.Repeat(" ", MaxBytes+1):                    "expected at most 65536 bytes, found 65537",
	} {
		if _, err := Parse([]byte(file)); !errors.Is(err, ErrBadFile) || !strings.Contains(err.Error(), words) {
			t.Errorf("%.60q: expected %q, found %v", file, words, err)
		}
	}
}

func TestDecodeHistoryRefusesOtherBytes(t *testing.T) {
	for b, words := range map[string]string{
		`{"format":2}`: "expected at most 1, found 2", `{}`: "form", `x`: "invalid", `{"format":1,"more":1}`: "form", `{"format":1} `: "form",
		`{"format":1,"parameters":{"a":{"value":1,"reductions":-1}}}`: "expected counts from 0",
		strings.Repeat(" ", MaxBytes+1):                               "expected at most 65536 bytes",
	} {
		if _, err := DecodeHistory([]byte(b)); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), words) {
			t.Errorf("%.60q: expected %q, found %v", b, words, err)
		}
	}
}

// No file crashes Parse, and a strategy that it accepts decides on finite values.
func FuzzParse(f *testing.F) {
	f.Add([]byte(all))
	f.Add([]byte("stop: [{when: loss < 1}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, file []byte) {
		s, err := Parse(file)
		if err != nil {
			if !errors.Is(err, ErrBadFile) {
				t.Fatal(err)
			}
			return
		}
		var h History
		for _, step := range []uint64{0, 1, 150, 1 << 20, 1 << 60, math.MaxUint64} {
			var decisions []Decision
			h, decisions = s.Decide(1, h, Stats{Step: step})
			for _, d := range decisions {
				if math.IsNaN(d.Value) || math.IsInf(d.Value, 0) || d.Reason == "" {
					t.Fatalf("step %d: %+v", step, d)
				}
			}
			if _, err := DecodeHistory(h.Encode()); err != nil {
				t.Fatal(err)
			}
		}
	})
}
