package optimizer

import (
	"math"
	"strings"
)

// The kinds of schedules.
const (
	Constant = "constant"
	Linear   = "linear"
	Stairs   = "step"
	Cosine   = "cosine"
)

// Schedules lists the kinds of schedules.
func Schedules() []string { return []string{Constant, Linear, Stairs, Cosine} }

// Schedule makes the learning rate a function of the step. The zero Schedule is
// constant.
type Schedule struct {
	Kind   string  `json:"kind,omitempty"` // "": Constant
	Warmup uint64  `json:"warmup,omitempty"`
	Steps  uint64  `json:"steps,omitempty"`  // of Linear and Cosine, Warmup counted; more than Warmup
	End    float64 `json:"end,omitempty"`    // of Linear and Cosine, at most 1
	Every  uint64  `json:"every,omitempty"`  // of Stairs, at least 1
	Factor float64 `json:"factor,omitempty"` // of Stairs, at most 1; default 0.1
}

// At returns the factor of the learning rate in a step; steps count from 1.
// In the warm-up it is step/Warmup. Then, with k = step-1-Warmup steps since:
//
//	constant  1
//	linear    1 - (1-End)*x            with x = k/(Steps-Warmup), at most 1
//	cosine    End + (1-End)*(1+cos(pi*x))/2
//	step      Factor^floor(k/Every)
//
// k and the formulas follow LinearLR, CosineAnnealingLR and StepLR of PyTorch, and the schedules with warm-up of Hugging Face's
// transformers. Their warm-up starts with a step of 0; this one starts at 1/Warmup.
func (s Schedule) At(step uint64) float64 {
	if step <= s.Warmup {
		return float64(step) / float64(s.Warmup)
	}
	k := step - 1 - s.Warmup
	switch s.Kind {
	case Linear:
		return 1 - (1-s.End)*s.progress(k)
	case Cosine:
		return s.End + (1-s.End)*(1+math.Cos(math.Pi*s.progress(k)))/2
	case Stairs:
		return math.Pow(s.Factor, float64(k/s.Every))
	}
	return 1
}

func (s Schedule) progress(k uint64) float64 {
	return min(1, float64(k)/float64(s.Steps-s.Warmup))
}

// lacks names the setting that the schedule lacks, or has too much of.
func (s Schedule) lacks() (setting, expected string) {
	switch s.Kind {
	case "", Constant:
	case Linear, Cosine:
		if s.Steps <= s.Warmup {
			return "schedule-steps", "more than the steps of the warm-up"
		}
		if s.End > 1 {
			return "schedule-end", "1 at most"
		}
	case Stairs:
		if s.Every == 0 {
			return "schedule-every", "1 or more"
		}
		if s.Factor > 1 {
			return "schedule-factor", "1 at most"
		}
	default:
		return "schedule", "one of " + strings.Join(Schedules(), ", ")
	}
	return "", ""
}
