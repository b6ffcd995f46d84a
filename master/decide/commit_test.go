package decide

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
		"goes with time":                       {{7 * ms, true, 107}, {0, true, 107}, {13 * ms, true, 120}},
		"keeps what is less than its unit":     {{400 * time.Microsecond, true, 100}, {400 * time.Microsecond, true, 100}, {400 * time.Microsecond, true, 101}},
		"goes 10 s beyond the last commit":     {{8 * time.Second, false, 8100}, {8 * time.Second, false, 10100}, {time.Hour, false, 10100}},
		"and no time is made up for":           {{time.Hour, true, 10100}, {5 * ms, true, 10105}},
		"a commit gives 10 s more":             {{time.Hour, true, 10100}, {time.Hour, true, 20100}},
		"does not go back with a clock before": {{10 * ms, true, 110}, {-time.Hour, true, 110}, {10 * ms, true, 120}},
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

func TestPaceLingersForThoseWhoWereAnswered(t *testing.T) {
	tests := map[string]struct {
		answered, waiting int
		took              time.Duration
		arrived           int
		target            int
		limited           bool
	}{
		"nobody was answered":             {0, 0, time.Millisecond, 0, 0, false},
		"one caller is not waited for":    {1, 0, time.Millisecond, 0, 0, false},
		"two are":                         {2, 0, time.Millisecond, 1, 2, true},
		"all are there":                   {8, 0, time.Millisecond, 8, 0, false},
		"more are there":                  {8, 0, time.Millisecond, 20, 0, false},
		"those who came meanwhile count":  {8, 3, time.Millisecond, 9, 11, true},
		"a slow store makes nobody wait ": {8, 0, time.Minute, 1, 8, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var p Pace
			for range 100 { // until the average is settled
				p.Committed(tt.answered, tt.waiting, tt.took)
			}
			target, limit := p.Linger(tt.arrived)
			if target != tt.target || limit > LingerMax || limit > 0 != tt.limited {
				t.Errorf("waits for %d, %v at most; want %d, up to %v", target, limit, tt.target, LingerMax)
			}
		})
	}
}

func TestJudgeAnUnknownOutcome(t *testing.T) {
	tests := map[string]struct {
		found    string
		revision int64
		want     Outcome
	}{
		"our bytes":                           {"mine", 8, Committed},
		"nothing happened":                    {"before", 7, Again},
		"somebody else's":                     {"other", 8, Over},
		"somebody else's, and then as before": {"before", 9, Over},
		"it is gone":                          {"", 0, Over},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Judge([]byte("mine"), 7, []byte(tt.found), tt.revision); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
