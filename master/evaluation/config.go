package evaluation

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ErrBadSetting is returned for an invalid setting.
var ErrBadSetting = errors.New("invalid setting")

// Config has the settings of an evaluation. The zero value evaluates by command and at the end of the job.
type Config struct {
	Every    Every
	Best     Goal
	KeepBest int      // number of models to keep. 0: 1.
	Target   *float64 // end the job when the figure of Best reaches it. nil: never.
	Patience int      // end the job after this number of rounds without a better figure. 0: never.
	Loss     string   // figure for divergence. "": loss.
	Diverged float64  // end the job when the loss exceeds this factor, above 1, times the lowest loss. 0: never.
}

// MaxKept is the largest number of models to keep.
const MaxKept = 100

// Every has the intervals of rounds. A round is due when one of them has passed. 0: none.
type Every struct {
	Steps  uint64 // versions of the parameters
	Passes uint64
	Time   time.Duration // of the job clock
}

// Goal is a figure and its direction.
type Goal struct {
	Figure string // "": loss, the lowest
	Max    bool   // the highest is the best
}

// better reports whether a is better than b.
func (g Goal) better(a, b float64) bool {
	if g.Max {
		return a > b
	}
	return a < b
}

func (g Goal) String() string {
	if g.Max {
		return g.Figure + ":max"
	}
	return g.Figure + ":min"
}

// withDefaults returns the settings with the default of each field that is zero.
func (c Config) withDefaults() Config {
	if c.Best.Figure == "" {
		c.Best = Goal{Figure: "loss"}
	}
	if c.Loss == "" {
		c.Loss = "loss"
	}
	c.KeepBest = max(c.KeepBest, 1)
	return c
}

// Validate returns an error of the first invalid field.
func (c Config) Validate() error {
	switch {
	case c.Every.Time < 0 || c.Every.Time%time.Millisecond != 0:
		return fmt.Errorf("%w: time between rounds: expected 0 or more in milliseconds, found %v", ErrBadSetting, c.Every.Time)
	case c.KeepBest < 0 || c.KeepBest > MaxKept:
		return fmt.Errorf("%w: models to keep: expected 0 (the default, 1) to %d, found %d", ErrBadSetting, MaxKept, c.KeepBest)
	case c.Patience < 0:
		return fmt.Errorf("%w: rounds without progress: expected 0 (no limit) or more, found %d", ErrBadSetting, c.Patience)
	case c.Target != nil && (math.IsNaN(*c.Target) || math.IsInf(*c.Target, 0)):
		return fmt.Errorf("%w: target: expected a finite number, found %v", ErrBadSetting, *c.Target)
	case c.Diverged != 0 && !(c.Diverged > 1 && c.Diverged <= math.MaxFloat64):
		return fmt.Errorf("%w: divergence: expected 0 (none) or a factor above 1, found %v", ErrBadSetting, c.Diverged)
	}
	return nil
}

// ParseEvery reads intervals such as "500steps,1pass,10m": each unit at most once, in any order. "" means no interval.
func ParseEvery(text string) (Every, error) {
	var e Every
	if text == "" {
		return e, nil
	}
	bad := func(part, expected string) (Every, error) {
		return Every{}, fmt.Errorf("%w: interval of rounds %q: expected %s, found %q", ErrBadSetting, text, expected, part)
	}
	for part := range strings.SplitSeq(text, ",") {
		number := strings.TrimRight(part, "abcdefghijklmnopqrstuvwxyz")
		unit := part[len(number):]
		n, err := strconv.ParseUint(number, 10, 64)
		of := &e.Steps
		switch unit {
		case "pass", "passes":
			of = &e.Passes
			fallthrough
		case "step", "steps":
			if err != nil || n == 0 {
				return bad(part, "a number above 0 before "+unit)
			}
			if *of != 0 {
				return bad(part, "each unit once")
			}
			*of = n
		default:
			d, err := time.ParseDuration(part)
			if err != nil {
				return bad(part, `"500steps", "1pass" or a time such as "10m"`)
			}
			if d < time.Second || d%time.Millisecond != 0 {
				return bad(part, "a time of 1s or more, in milliseconds")
			}
			if e.Time != 0 {
				return bad(part, "each unit once")
			}
			e.Time = d
		}
	}
	return e, nil
}

// ParseGoal reads a figure and its direction, such as "accuracy:max".
func ParseGoal(text string) (Goal, error) {
	figure, direction, _ := strings.Cut(text, ":")
	if figure == "" || direction != "min" && direction != "max" {
		return Goal{}, fmt.Errorf(`%w: best metric: expected a figure with ":min" or ":max", such as "accuracy:max", found %q`, ErrBadSetting, text)
	}
	return Goal{Figure: figure, Max: direction == "max"}, nil
}
