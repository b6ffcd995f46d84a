package optimizer

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Setting is one field of a Config as a flag: it reads and prints the field's
// value.
type Setting struct {
	Name  string
	Usage string
	Words []string // that the value is one of; nil: it is a number

	instead   string   // what 0 stands for, in the fields that have no other way to say "not given"; "": for 0
	field     any      // *string, *float32, *float64 or *uint64
	kinds     []string // that have a use for it; nil: all
	schedules []string // that have a use for it; nil: all
	below     float64  // of a number
}

// Settings returns the fields of c. The flag of a field is "--" and its name, in all commands.
func (c *Config) Settings() []Setting {
	inf := math.Inf(1)
	adams := []string{Adam, AdamW}
	sums := []string{Adagrad, FTRL}
	s := &c.Schedule
	return []Setting{
		{Name: "optimizer", Usage: "how gradients change parameters (default: chosen by the data)", Words: Kinds(), field: &c.Kind},
		{Name: "learning-rate", Usage: "of the mean gradient (0: chosen by optimizer and data)", field: &c.LearningRate, below: inf},
		{Name: "momentum", Usage: "with --learning-rate, or --optimizer momentum or nesterov: the part of the last change that stays", field: &c.Momentum, kinds: []string{Momentum, Nesterov}, below: 1},
		{Name: "beta1", Usage: "of adam and adamw: the part of the mean that stays (above 0; not given: 0.9)", instead: "0.9", field: &c.Beta1, kinds: adams, below: 1},
		{Name: "beta2", Usage: "of adam and adamw: the part of the mean of squares that stays (above 0; not given: 0.999)", instead: "0.999", field: &c.Beta2, kinds: adams, below: 1},
		{Name: "epsilon", Usage: "of adam, adamw and adagrad: added to the root (above 0; not given: 1e-8, adagrad: 1e-10)", instead: "1e-8, or 1e-10 of adagrad", field: &c.Epsilon, kinds: append(adams, Adagrad), below: inf},
		{Name: "initial-accumulator", Usage: "of adagrad and ftrl: what sums of squares start at", field: &c.InitialAccumulator, kinds: sums, below: inf},
		{Name: "ftrl-beta", Usage: "of ftrl: added to the root (above 0; not given: 1)", instead: "1", field: &c.FTRLBeta, kinds: []string{FTRL}, below: inf},
		{Name: "l1", Usage: "of ftrl: makes parameters exactly 0", field: &c.L1, kinds: []string{FTRL}, below: inf},
		{Name: "l2", Usage: "of ftrl: draws parameters towards 0", field: &c.L2, kinds: []string{FTRL}, below: inf},
		{Name: "weight-decay", Usage: "draws parameters towards 0: added to the gradient times the parameter; adamw: apart from it", field: &c.WeightDecay, kinds: []string{SGD, Momentum, Nesterov, Adagrad, Adam, AdamW}, below: inf},
		{Name: "clip-value", Usage: "limit for every element of a gradient (0: none)", field: &c.ClipValue, below: inf},
		{Name: "clip-norm", Usage: "limit for the norm of a trainer's gradient, all tensors together (0: none)", field: &c.ClipNorm, below: inf},
		{Name: "schedule", Usage: "of the learning rate, after the warm-up (default: constant)", Words: Schedules(), field: &s.Kind},
		{Name: "warmup-steps", Usage: "steps in which the learning rate grows to its full size", field: &s.Warmup},
		{Name: "schedule-steps", Usage: "linear, cosine: the step, warm-up counted, from which the rate is --schedule-end", field: &s.Steps, schedules: []string{Linear, Cosine}},
		{Name: "schedule-end", Usage: "linear, cosine: part of the learning rate that is left at the end", field: &s.End, schedules: []string{Linear, Cosine}, below: inf},
		{Name: "schedule-every", Usage: "step: steps between two drops of the rate", field: &s.Every, schedules: []string{Stairs}},
		{Name: "schedule-factor", Usage: "step: what a drop multiplies the rate by (above 0; not given: 0.1)", instead: "0.1", field: &s.Factor, schedules: []string{Stairs}, below: inf},
	}
}

// Set reads the value, as a flag has it. It refuses 0 in a field where 0 means the default.
func (s Setting) Set(text string) error {
	if err := s.read(text); err != nil {
		return err
	}
	if v, ok := s.number(); ok && v == 0 && s.instead != "" {
		return fmt.Errorf("expected a number above 0: 0 would be taken for the default, %s; leave it out for that", s.instead)
	}
	return nil
}

func (s Setting) read(text string) error {
	switch field := s.field.(type) {
	case *string:
		if !slices.Contains(s.Words, text) {
			return fmt.Errorf("expected one of %s", strings.Join(s.Words, ", "))
		}
		*field = text
	case *float32:
		v, err := strconv.ParseFloat(text, 32)
		if err != nil {
			return err
		}
		*field = float32(v)
	case *float64:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		*field = v
	case *uint64:
		v, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return err
		}
		*field = v
	}
	return nil
}

// String is the value, such that Set reads the same.
func (s Setting) String() string {
	switch field := s.field.(type) {
	case *string:
		return *field
	case *float32:
		return strconv.FormatFloat(float64(*field), 'g', -1, 32)
	case *float64:
		return strconv.FormatFloat(*field, 'g', -1, 64)
	case *uint64:
		return strconv.FormatUint(*field, 10)
	}
	return ""
}

// Type names the value in the help of a command.
func (s Setting) Type() string {
	switch s.field.(type) {
	case *string:
		return strings.Join(s.Words, "|")
	case *uint64:
		return "uint"
	}
	return "float"
}

func (s Setting) number() (v float64, ok bool) {
	switch field := s.field.(type) {
	case *float32:
		return float64(*field), true
	case *float64:
		return *field, true
	}
	return 0, false
}

func (s Setting) isZero() bool {
	text := s.String()
	return text == "" || text == "0"
}

// misplaced says where the setting belongs, if it has no place with this kind of
// rule and schedule.
func (s Setting) misplaced(kind, schedule string) string {
	switch {
	case s.kinds != nil && !slices.Contains(s.kinds, kind) && (kind != "" || !slices.Contains(s.kinds, Momentum)):
		return "nothing: it goes with --optimizer " + strings.Join(s.kinds, " or ")
	case s.schedules != nil && !slices.Contains(s.schedules, schedule):
		return "nothing: it goes with --schedule " + strings.Join(s.schedules, " or ")
	}
	return ""
}

// Flags are the fields that are not 0, as a command line has them.
func (c Config) Flags() []string {
	var args []string
	for _, s := range c.Settings() {
		if !s.isZero() {
			args = append(args, "--"+s.Name, s.String())
		}
	}
	return args
}

// String is the command line of Flags.
func (c Config) String() string { return strings.Join(c.Flags(), " ") }

// Parse reads the output of String. It does not validate the result.
func Parse(text string) (Config, error) {
	var c Config
	settings := c.Settings()
	words := strings.Fields(text)
	for len(words) > 0 {
		name, dashes := strings.CutPrefix(words[0], "--")
		i := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == name })
		if !dashes || i < 0 {
			return Config{}, fmt.Errorf("optimizer settings %q: %q is none", text, words[0])
		}
		if len(words) < 2 {
			return Config{}, fmt.Errorf("optimizer settings %q: %s has no value", text, words[0])
		}
		if err := settings[i].Set(words[1]); err != nil {
			return Config{}, fmt.Errorf("optimizer settings %q: %s: %w", text, words[0], err)
		}
		words = words[2:]
	}
	return c, nil
}
