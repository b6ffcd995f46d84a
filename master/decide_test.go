package master

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
			c := jobClock{now: 100, committed: 100}
			for i, s := range steps {
				if got := c.advance(s.elapsed); got != s.want {
					t.Fatalf("step %d: %d, want %d", i, got, s.want)
				}
				if s.committed {
					c.committed = c.now
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
			var p pace
			for range 100 { // until the average is settled
				p.committed(tt.answered, tt.waiting, tt.took)
			}
			target, limit := p.linger(tt.arrived)
			if target != tt.target || limit > lingerMax || limit > 0 != tt.limited {
				t.Errorf("waits for %d, %v at most; want %d, up to %v", target, limit, tt.target, lingerMax)
			}
		})
	}
}

func TestJudgeAnUnknownOutcome(t *testing.T) {
	tests := map[string]struct {
		found    string
		revision int64
		want     outcome
	}{
		"our bytes":                           {"mine", 8, outcomeCommitted},
		"nothing happened":                    {"before", 7, outcomeAgain},
		"somebody else's":                     {"other", 8, outcomeOver},
		"somebody else's, and then as before": {"before", 9, outcomeOver},
		"it is gone":                          {"", 0, outcomeOver},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := judge([]byte("mine"), 7, []byte(tt.found), tt.revision); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestChunksPerTask(t *testing.T) {
	tests := []struct{ trainers, explicit, chunks, want int }{
		{trainers: 8, chunks: 0, want: 1},
		{trainers: 8, chunks: 63, want: 1},
		{trainers: 8, chunks: 64, want: 1},
		{trainers: 8, chunks: 128, want: 2},
		{trainers: 1, chunks: 100, want: 12},
		{trainers: 8, chunks: 10_000_000, want: maxChunksOfTask},
		{trainers: 8, explicit: 7, chunks: 10, want: 7},
		{trainers: 8, explicit: 100_000, chunks: 10_000_000, want: 100_000},
	}
	for _, tt := range tests {
		c := Config{Trainers: tt.trainers, ChunksPerTask: tt.explicit}.withDefaults()
		if got := c.chunksPerTask(tt.chunks); got != tt.want {
			t.Errorf("%+v: got %d chunks for each task", tt, got)
		}
		if tt.explicit == 0 && tt.chunks >= tasksPerTrainer*tt.trainers && tt.chunks/c.chunksPerTask(tt.chunks) < tasksPerTrainer*tt.trainers {
			t.Errorf("%+v: fewer than %d tasks for each trainer", tt, tasksPerTrainer)
		}
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	for field, c := range map[string]Config{
		"chunks-per-task": {ChunksPerTask: -1},
		"trainers":        {Trainers: -1},
		"linger":          {Linger: -1},
		"passes":          {Queue: taskqueue.Options{Passes: -1}},
	} {
		if err := c.Validate(); err == nil || len(err.Error()) < len(field) || err.Error()[:len(field)] != field {
			t.Errorf("expected an error that begins with %s, got %v", field, err)
		}
	}
}
