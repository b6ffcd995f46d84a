package committer

import (
	"testing"
	"time"

	"trainmaster/taskqueue"
)

func TestJobClock(t *testing.T) {
	const ms = time.Millisecond
	type step struct {
		elapsed   time.Duration
		committed bool // after it
		want      taskqueue.Clock
	}
	tests := map[string][]step{
		"advances with time":               {{7 * ms, true, 107}, {0, true, 107}, {13 * ms, true, 120}},
		"carries fractions of its unit":    {{400 * time.Microsecond, true, 100}, {400 * time.Microsecond, true, 100}, {400 * time.Microsecond, true, 101}},
		"stops 10 s after the last commit": {{8 * time.Second, false, 8100}, {8 * time.Second, false, 10100}, {time.Hour, false, 10100}},
		"lost time is not added later":     {{time.Hour, true, 10100}, {5 * ms, true, 10105}},
		"a commit adds 10 s":               {{time.Hour, true, 10100}, {time.Hour, true, 20100}},
		"does not go back":                 {{10 * ms, true, 110}, {-time.Hour, true, 110}, {10 * ms, true, 120}},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			c := JobClock{Now: 100, Committed: 100}
			for i, s := range steps {
				if got := c.Advance(s.elapsed); got != s.want {
					t.Fatalf("step %d: %d, want %d", i, got, s.want)
				}
				if s.committed {
					c.Committed = c.Now
				}
			}
		})
	}
}

func TestPaceLingersForAnsweredCallers(t *testing.T) {
	tests := map[string]struct {
		answered, waiting int
		took              time.Duration
		arrived           int
		target            int
		limited           bool
	}{
		"no answers":                   {0, 0, time.Millisecond, 0, 0, false},
		"one answer":                   {1, 0, time.Millisecond, 0, 0, false},
		"two answers":                  {2, 0, time.Millisecond, 1, 2, true},
		"all callers are back":         {8, 0, time.Millisecond, 8, 0, false},
		"more callers are back":        {8, 0, time.Millisecond, 20, 0, false},
		"new callers count":            {8, 3, time.Millisecond, 9, 11, true},
		"a slow store limits the wait": {8, 0, time.Minute, 1, 8, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var b batcher
			for range 100 { // until the average is stable
				b.committed(tt.answered, tt.waiting, tt.took)
			}
			target, limit := b.linger(tt.arrived)
			if target != tt.target || limit > lingerMax || limit > 0 != tt.limited {
				t.Errorf("linger: expected %[3]d callers, up to %[4]v; found %[1]d, %[2]v", target, limit, tt.target, lingerMax)
			}
		})
	}
}

func TestJudgeClassifiesUnknownOutcome(t *testing.T) {
	tests := map[string]struct {
		found    string
		revision int64
		want     outcome
	}{
		"own bytes":                              {"mine", 8, outcomeCommitted},
		"not applied":                            {"before", 7, outcomeUnchanged},
		"bytes of another master":                {"other", 8, outcomeOver},
		"changed and restored by another master": {"before", 9, outcomeOver},
		"deleted":                                {"", 0, outcomeOver},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := classifyOutcome([]byte("mine"), 7, []byte(tt.found), tt.revision); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
