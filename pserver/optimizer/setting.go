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
	Words []string // Permitted values, nil for a number.

	instead   string   // The default that 0 selects, empty if 0 means 0.
	field     any      // *string, *float32, *float64 or *uint64
	kinds     []string // Kinds that use the setting, nil for all.
	schedules []string // Schedules that use the setting, nil for all.
	below     float64  // Exclusive upper limit of a number.
}

// Settings returns the fields of c. The flag of a field is "--" and its name, in all commands.
func (c *Config) Settings() []Setting {
	inf := math.Inf(1)
	adams := []string{Adam, AdamW}
	sums := []string{Adagrad, FTRL}
	s := &c.Schedule
	return []Setting{
		{Name: "optimizer", Usage: "optimizer (default: chosen by the dataset)", Words: Kinds(), field: &c.Kind},
		{Name: "learning-rate", Usage: "learning rate for the mean gradient (0 = chosen by optimizer and dataset)", field: &c.LearningRate, below: inf},
		{Name: "momentum", Usage: "decay of the velocity, below 1 (requires --learning-rate, or --optimizer momentum or nesterov)", field: &c.Momentum, kinds: []string{Momentum, Nesterov}, below: 1},
		{Name: "beta1", Usage: "decay of the mean for adam and adamw, above 0 (default 0.9)", instead: "0.9", field: &c.Beta1, kinds: adams, below: 1},
		{Name: "beta2", Usage: "decay of the mean square for adam and adamw, above 0 (default 0.999)", instead: "0.999", field: &c.Beta2, kinds: adams, below: 1},
		{Name: "epsilon", Usage: "term added to the root for adam, adamw and adagrad, above 0 (default 1e-8, adagrad 1e-10)", instead: "1e-8, or 1e-10 of adagrad", field: &c.Epsilon, kinds: append(adams, Adagrad), below: inf},
		{Name: "initial-accumulator", Usage: "initial sum of squares for adagrad and ftrl", field: &c.InitialAccumulator, kinds: sums, below: inf},
		{Name: "ftrl-beta", Usage: "term added to the root for ftrl, above 0 (default 1)", instead: "1", field: &c.FTRLBeta, kinds: []string{FTRL}, below: inf},
		{Name: "l1", Usage: "L1 regularization for ftrl, which sets small parameters to 0", field: &c.L1, kinds: []string{FTRL}, below: inf},
		{Name: "l2", Usage: "L2 regularization for ftrl", field: &c.L2, kinds: []string{FTRL}, below: inf},
		{Name: "weight-decay", Usage: "weight decay: multiple of the parameter in the gradient (adamw: separate from the gradient)", field: &c.WeightDecay, kinds: []string{SGD, Momentum, Nesterov, Adagrad, Adam, AdamW}, below: inf},
		{Name: "clip-value", Usage: "limit for each element of a gradient (0 = no limit)", field: &c.ClipValue, below: inf},
		{Name: "clip-norm", Usage: "limit for the norm of a trainer's gradient over all tensors (0 = no limit)", field: &c.ClipNorm, below: inf},
		{Name: "schedule", Usage: "schedule of the learning rate after the warm-up (default constant)", Words: Schedules(), field: &s.Kind},
		{Name: "warmup-steps", Usage: "steps in which the learning rate rises to its full value", field: &s.Warmup},
		{Name: "schedule-steps", Usage: "last step of a linear or cosine schedule, including the warm-up", field: &s.Steps, schedules: []string{Linear, Cosine}},
		{Name: "schedule-end", Usage: "final factor of a linear or cosine schedule", field: &s.End, schedules: []string{Linear, Cosine}, below: inf},
		{Name: "schedule-every", Usage: "steps between two drops of a step schedule", field: &s.Every, schedules: []string{Stairs}},
		{Name: "schedule-factor", Usage: "factor of each drop of a step schedule, above 0 (default 0.1)", instead: "0.1", field: &s.Factor, schedules: []string{Stairs}, below: inf},
	}
}

// Set reads the value, as a flag has it. It refuses 0 in a field where 0 means the default.
func (s Setting) Set(text string) error {
	if err := s.read(text); err != nil {
		return err
	}
	if v, ok := s.number(); ok && v == 0 && s.instead != "" {
		return fmt.Errorf("expected a number above 0: 0 selects the default, %s: omit the setting for the default", s.instead)
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

// misplaced returns the expected value if the kind of rule or schedule does not use the setting, and otherwise an empty string.
func (s Setting) misplaced(kind, schedule string) string {
	switch {
	case s.kinds != nil && !slices.Contains(s.kinds, kind) && (kind != "" || !slices.Contains(s.kinds, Momentum)):
		return "no value without --optimizer " + strings.Join(s.kinds, " or ")
	case s.schedules != nil && !slices.Contains(s.schedules, schedule):
		return "no value without --schedule " + strings.Join(s.schedules, " or ")
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
