package pscontrol

import (
	"testing"
	"time"
)

func TestCadence(t *testing.T) {
	began := time.Unix(0, 0)
	for text, want := range map[string]Cadence{
		"never": {}, "60s": {Time: time.Minute}, "500steps": {Steps: 500}, "1step": {Steps: 1}, "2passes,90s": {Passes: 2, Time: 90 * time.Second},
		"1h30m,1pass": {Time: 90 * time.Minute, Passes: 1},
	} {
		if c, err := ParseCadence(text); err != nil || c != want {
			t.Errorf("%q: got %+v, %v; expected %+v", text, c, err, want)
		}
	}
	for _, text := range []string{"", "0s", "-1s", "5", "0pass", "1pass,2pass", "1s,2s", "1 pass", "5000000000steps", "1week"} {
		if c, err := ParseCadence(text); err == nil {
			t.Errorf("%q: got %+v, expected an error", text, c)
		}
	}
	c := Cadence{Time: time.Minute, Steps: 10, Passes: 1}
	last := progress{at: began, steps: 100, passes: 5}
	for what, tt := range map[string]struct {
		now progress
		due bool
	}{
		"nothing": {progress{at: began.Add(59 * time.Second), steps: 109, passes: 5}, false},
		"time":    {progress{at: began.Add(time.Minute), steps: 100, passes: 5}, true},
		"steps":   {progress{at: began, steps: 110, passes: 5}, true},
		"passes":  {progress{at: began, steps: 100, passes: 6}, true},
	} {
		if c.due(tt.now, last) != tt.due || (Cadence{}).due(tt.now, last) {
			t.Errorf("%s: due %v, expected %v", what, !tt.due, tt.due)
		}
	}
}
