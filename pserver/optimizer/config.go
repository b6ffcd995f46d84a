package optimizer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// The kinds of rules.
const (
	SGD      = "sgd"
	Momentum = "momentum"
	Nesterov = "nesterov"
	Adagrad  = "adagrad"
	Adam     = "adam"
	AdamW    = "adamw"
	FTRL     = "ftrl"
)

// Kinds lists the kinds of rules.
func Kinds() []string { return []string{SGD, Momentum, Nesterov, Adagrad, Adam, AdamW, FTRL} }

// Config is a rule with its numbers. It belongs to the job: all trainers and
// servers have the same. A number that its kind has no use for must be 0. The
// package comment has the formulas.
//
// Beta1 and Beta2 are float64, since what counts of them is their distance from 1.
type Config struct {
	Kind         string  `json:"kind"`
	LearningRate float32 `json:"learning_rate"` // 0: 0.001 for Adam and AdamW, 0.01 for Adagrad, 0.1 for FTRL; the others have no default
	Momentum     float32 `json:"momentum"`

	Beta1              float64 `json:"beta1,omitempty"`               // default 0.9
	Beta2              float64 `json:"beta2,omitempty"`               // default 0.999
	Epsilon            float32 `json:"epsilon,omitempty"`             // default 1e-8; of Adagrad 1e-10
	InitialAccumulator float32 `json:"initial_accumulator,omitempty"` // of Adagrad's and FTRL's sums of squares
	FTRLBeta           float32 `json:"ftrl_beta,omitempty"`           // default 1
	L1                 float32 `json:"l1,omitempty"`                  // of FTRL
	L2                 float32 `json:"l2,omitempty"`                  // of FTRL, half the square's factor

	WeightDecay float32 `json:"weight_decay,omitempty"`
	ClipValue   float32 `json:"clip_value,omitempty"` // 0: no limit
	ClipNorm    float32 `json:"clip_norm,omitempty"`  // 0: no limit

	Schedule Schedule `json:"schedule,omitzero"`
}

// FieldError names an invalid field of a Config.
type FieldError struct {
	Kind     string
	Setting  string // its name among Settings
	Value    string
	Expected string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("optimizer %q: %s is %s: expected %s", e.Kind, e.Setting, e.Value, e.Expected)
}

// Validate returns an error for an invalid field, and sets the defaults. Two that mean
// the same are equal after it.
func (c *Config) Validate() error {
	if !slices.Contains(Kinds(), c.Kind) {
		return fmt.Errorf("optimizer %q: expected one of %s", c.Kind, strings.Join(Kinds(), ", "))
	}
	if err := c.CheckGiven(); err != nil {
		return err
	}
	switch c.Kind {
	case Adam, AdamW:
		c.LearningRate = cmp.Or(c.LearningRate, 0.001)
		c.Beta1 = cmp.Or(c.Beta1, 0.9)
		c.Beta2 = cmp.Or(c.Beta2, 0.999)
		c.Epsilon = cmp.Or(c.Epsilon, 1e-8)
	case Adagrad:
		c.LearningRate = cmp.Or(c.LearningRate, 0.01)
		c.Epsilon = cmp.Or(c.Epsilon, 1e-10)
	case FTRL:
		c.LearningRate = cmp.Or(c.LearningRate, 0.1)
		c.FTRLBeta = cmp.Or(c.FTRLBeta, 1)
	}
	if c.LearningRate == 0 {
		return &FieldError{c.Kind, "learning-rate", "0", "a positive number"}
	}
	switch c.Schedule.Kind {
	case Constant:
		c.Schedule.Kind = ""
	case Stairs:
		c.Schedule.Factor = cmp.Or(c.Schedule.Factor, 0.1)
	}
	return nil
}

// CheckGiven checks a Config that is completed later. A zero is a number to be chosen, and an empty Kind will be SGD or Momentum.
// The Schedule is final.
func (c *Config) CheckGiven() error {
	for _, s := range c.Settings() {
		if s.isZero() {
			continue
		}
		if expected := s.misplaced(c.Kind, c.Schedule.Kind); expected != "" {
			return &FieldError{c.Kind, s.Name, s.String(), expected}
		}
		if v, ok := s.number(); ok && (v < 0 || v >= s.below || v != v || math.IsInf(v, 0)) {
			expected := "0 or more"
			if !math.IsInf(s.below, 0) {
				expected += fmt.Sprintf(", and less than %v", s.below)
			}
			return &FieldError{c.Kind, s.Name, s.String(), expected}
		}
	}
	if name, expected := c.Schedule.lacks(); name != "" {
		i := slices.IndexFunc(c.Settings(), func(s Setting) bool { return s.Name == name })
		return &FieldError{c.Kind, name, c.Settings()[i].String(), expected}
	}
	return nil
}

// Counted reports whether the rule looks at Step.Count.
func (c Config) Counted() bool { return c.Kind == Adam || c.Kind == AdamW }

// Rule is the rule of a Config that Validate has passed, by the fastest loops
// that this processor has.
func (c Config) Rule() Rule { return c.rule(levels[0]) }

// PlainRule is the same rule by plain Go, with the same results to the bit: what
// the others are compared with.
func (c Config) PlainRule() Rule { return c.rule(plainLevel) }

func (c Config) rule(l *level) Rule {
	g := shaping{level: l, clip: c.ClipValue, decay: c.WeightDecay}
	switch c.Kind {
	case SGD:
		return &sgd{g, c.LearningRate}
	case Momentum:
		return &momentum{g, loopMomentum, c.LearningRate, c.Momentum}
	case Nesterov:
		return &momentum{g, loopNesterov, c.LearningRate, c.Momentum}
	case Adagrad:
		return &adagrad{g, c.LearningRate, c.Epsilon, c.InitialAccumulator}
	case Adam:
		return &adam{shaping: g, rate: c.LearningRate, beta1: c.Beta1, beta2: c.Beta2, epsilon: c.Epsilon}
	case AdamW:
		return &adam{shaping: shaping{level: l, clip: c.ClipValue}, rate: c.LearningRate, beta1: c.Beta1, beta2: c.Beta2, epsilon: c.Epsilon, decoupledDecay: c.WeightDecay}
	case FTRL:
		return &ftrl{g, c.LearningRate, c.FTRLBeta, c.InitialAccumulator, c.L1, c.L2}
	}
	panic("optimizer.Config: not validated: " + c.Kind)
}
