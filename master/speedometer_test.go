package master_test

import (
	"math"
	"testing"
	"time"

	"trainmaster/master"
	"trainmaster/taskqueue"
)

// say is what one session reports.
func say(incarnation uint64, records int64, loss float64) taskqueue.TrainerOverview {
	return taskqueue.TrainerOverview{Incarnation: incarnation, Progress: taskqueue.Progress{Records: records, Loss: loss}}
}

func TestSpeedometer(t *testing.T) {
	type observation struct {
		second   float64
		trainers []taskqueue.TrainerOverview
	}
	tests := map[string]struct {
		seen    []observation
		records int64
		speed   float64
		loss    float64
		ok      bool
	}{
		"nobody": {seen: []observation{{0, nil}}},
		"nothing reported yet": {
			seen: []observation{{0, []taskqueue.TrainerOverview{say(1, 0, 0)}}, {5, []taskqueue.TrainerOverview{say(1, 0, 0)}}},
		},
		"the first report has no rate": {
			seen:    []observation{{0, []taskqueue.TrainerOverview{say(1, 0, 0)}}, {1, []taskqueue.TrainerOverview{say(1, 1_000_000, 0.5)}}},
			records: 1_000_000, loss: 0.5, ok: true,
		},
		"two reports": {
			seen:    []observation{{0, []taskqueue.TrainerOverview{say(1, 100, 9)}}, {4, []taskqueue.TrainerOverview{say(1, 300, 2)}}},
			records: 300, speed: 50, loss: 2, ok: true,
		},
		"observed more often than reported": {
			seen: []observation{
				{0, []taskqueue.TrainerOverview{say(1, 100, 1)}}, {1, []taskqueue.TrainerOverview{say(1, 100, 1)}},
				{5, []taskqueue.TrainerOverview{say(1, 600, 1)}}, {9, []taskqueue.TrainerOverview{say(1, 600, 1)}},
			},
			records: 600, speed: 100, loss: 1, ok: true,
		},
		"losses weigh by speed": {
			seen: []observation{
				{0, []taskqueue.TrainerOverview{say(1, 10, 0), say(2, 10, 0)}},
				{10, []taskqueue.TrainerOverview{say(1, 310, 1), say(2, 110, 5)}},
			},
			records: 420, speed: 40, loss: 2, ok: true,
		},
		"a session that stopped": {
			seen: []observation{
				{0, []taskqueue.TrainerOverview{say(1, 100, 1)}}, {5, []taskqueue.TrainerOverview{say(1, 600, 1)}},
				{60, []taskqueue.TrainerOverview{say(1, 600, 1)}},
			},
			records: 600, loss: 1, ok: true,
		},
		"a session that is gone": {
			seen: []observation{
				{0, []taskqueue.TrainerOverview{say(1, 100, 1)}}, {5, []taskqueue.TrainerOverview{say(1, 600, 1)}},
				{6, []taskqueue.TrainerOverview{say(2, 0, 0)}},
			},
		},
		"a count that goes back": {
			seen:    []observation{{0, []taskqueue.TrainerOverview{say(1, 600, 1)}}, {5, []taskqueue.TrainerOverview{say(1, 100, 1)}}},
			records: 100, loss: 1, ok: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var s master.Speedometer
			begin := time.Unix(1000, 0)
			for _, o := range tt.seen {
				s.Observe(begin.Add(time.Duration(o.second*float64(time.Second))), o.trainers)
			}
			records, speed, loss, ok := s.Total(tt.seen[len(tt.seen)-1].trainers)
			if records != tt.records || math.Abs(speed-tt.speed) > 1e-9 || math.Abs(loss-tt.loss) > 1e-9 || ok != tt.ok {
				t.Errorf("found %d records, %g/s, loss %g, %v; want %d, %g, %g, %v", records, speed, loss, ok, tt.records, tt.speed, tt.loss, tt.ok)
			}
		})
	}
}
