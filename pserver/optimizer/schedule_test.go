package optimizer

import (
	"math"
	"testing"
)

func TestSchedules(t *testing.T) {
	for name, tt := range map[string]struct {
		schedule Schedule
		want     map[uint64]float64
	}{
		"constant": {Schedule{}, map[uint64]float64{1: 1, 1000: 1}},
		"warm-up":  {Schedule{Warmup: 4}, map[uint64]float64{1: 0.25, 2: 0.5, 4: 1, 5: 1, 900: 1}},
		"linear": {Schedule{Kind: Linear, Warmup: 2, Steps: 12, End: 0.2},
			map[uint64]float64{1: 0.5, 2: 1, 3: 1, 4: 0.92, 8: 0.6, 12: 0.28, 13: 0.2, math.MaxUint64: 0.2}},
		"cosine": {Schedule{Kind: Cosine, Steps: 100},
			map[uint64]float64{1: 1, 51: 0.5, 26: (1 + math.Sqrt(0.5)) / 2, 101: 0, math.MaxUint64: 0}},
		"steps": {Schedule{Kind: Stairs, Warmup: 1, Every: 10, Factor: 0.5},
			map[uint64]float64{1: 1, 2: 1, 11: 1, 12: 0.5, 21: 0.5, 22: 0.25, math.MaxUint64: 0}},
	} {
		for step, want := range tt.want {
			if got := tt.schedule.At(step); math.Abs(got-want) > 1e-12 {
				t.Errorf("%s, step %d: %v, expected %v", name, step, got, want)
			}
		}
	}
	if got := (Schedule{}).At(1); got != 1 {
		t.Errorf("the rate of old is multiplied by %v", got)
	}
}
