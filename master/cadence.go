package master

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"trainmaster/taskqueue"
)

// Cadence is the interval between checkpoints: a checkpoint is due when any nonzero limit is reached. The zero value
// means never.
type Cadence struct {
	Time   time.Duration
	Steps  uint64 // versions of the parameters; synchronous mode only
	Passes uint64 // over all datasets together
}

// ParseCadence reads "60s", "500steps", "1pass", several of them separated by commas, or
// "never".
func ParseCadence(text string) (Cadence, error) {
	var c Cadence
	if text == "never" {
		return c, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		digits := strings.TrimRight(part, "abcdefghijklmnopqrstuvwxyz")
		n, err := strconv.ParseUint(digits, 10, 32)
		switch unit := part[len(digits):]; {
		case err == nil && n > 0 && (unit == "steps" || unit == "step") && c.Steps == 0:
			c.Steps = n
		case err == nil && n > 0 && (unit == "passes" || unit == "pass") && c.Passes == 0:
			c.Passes = n
		default:
			d, err := time.ParseDuration(part)
			if err != nil || d <= 0 || c.Time != 0 {
				return Cadence{}, fmt.Errorf("cadence %q: expected a time such as 60s, 500steps, 1pass, some of them separated by commas, or never", text)
			}
			c.Time = d
		}
	}
	return c, nil
}

// progress is how far a job is, as a cadence sees it.
type progress struct {
	at     time.Time
	steps  uint64
	passes uint64
	clock  taskqueue.Clock // job clock, which continues across terms
}

func (c Cadence) due(now, last progress) bool {
	return c.Time > 0 && now.at.Sub(last.at) >= c.Time ||
		c.Steps > 0 && now.steps >= last.steps+c.Steps ||
		c.Passes > 0 && now.passes >= last.passes+c.Passes
}
