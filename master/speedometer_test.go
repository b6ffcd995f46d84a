package master_test

import (
	"math"
	"testing"
	"time"

	"trainmaster/master"
	"trainmaster/taskqueue"
)

// say returns the report of one session.
func say(incarnation uint64, records int64, loss float64) taskqueue.TrainerOverview {
	return taskqueue.TrainerOverview{Incarnation: incarnation, Progress: taskqueue.Progress{Records: records, Loss: loss}}
}

// look is one observation of a speedometer.
type look struct {
	term     uint64
	second   float64
	trainers []taskqueue.TrainerOverview
}

func at(second float64, trainers ...taskqueue.TrainerOverview) look { return look{1, second, trainers} }

func (l look) inTerm(term uint64) look { l.term = term; return l }

func TestSpeedometer(t *testing.T) {
	tests := map[string]struct {
		looks   []look
		records int64
		speed   float64
		loss    float64
		ok      bool
	}{
		"nobody": {looks: []look{at(0)}},
		"nothing reported yet": {
			looks: []look{at(0), at(1, say(1, 0, 0)), at(5, say(1, 0, 0))},
		},
		"a new session": {
			looks:   []look{at(0), at(1, say(1, 0, 0)), at(3, say(1, 100, 0.5))},
			records: 100, speed: 50, loss: 0.5, ok: true,
		},
		"an earlier session: the first report has no rate": {
			looks:   []look{at(0, say(1, 0, 0)), at(1, say(1, 1_000_000, 0.5))},
			records: 1_000_000, loss: 0.5, ok: true,
		},
		"a session that joined under another leader": {
			looks:   []look{at(0, say(1, 10, 1)), at(1).inTerm(2), at(2, say(1, 10, 1), say(7, 0, 0)).inTerm(3), at(3, say(1, 20, 1), say(7, 1_000_000, 1)).inTerm(3)},
			records: 1_000_020, speed: 10, loss: 1, ok: true,
		},
		"two reports": {
			looks:   []look{at(0, say(1, 100, 9)), at(4, say(1, 300, 2))},
			records: 300, speed: 50, loss: 2, ok: true,
		},
		"a term that begins with earlier records": {
			looks:   []look{at(0, say(1, 100, 9)), at(2, say(1, 0, 0)).inTerm(2), at(4, say(1, 300, 2)).inTerm(2)},
			records: 300, speed: 50, loss: 2, ok: true,
		},
		"more observations than reports": {
			looks:   []look{at(0, say(1, 100, 1)), at(1, say(1, 100, 1)), at(5, say(1, 600, 1)), at(9, say(1, 600, 1))},
			records: 600, speed: 100, loss: 1, ok: true,
		},
		"a session that hangs has no rate after three intervals": {
			looks:   []look{at(0, say(1, 100, 1)), at(5, say(1, 600, 1)), at(10, say(1, 1100, 1)), at(26, say(1, 1100, 1))},
			records: 1100, loss: 1, ok: true,
		},
		"losses weigh by speed": {
			looks:   []look{at(0, say(1, 10, 0), say(2, 10, 0)), at(10, say(1, 310, 1), say(2, 110, 5))},
			records: 420, speed: 40, loss: 2, ok: true,
		},
		"a session that stopped": {
			looks:   []look{at(0, say(1, 100, 1)), at(5, say(1, 600, 1)), at(60, say(1, 600, 1))},
			records: 600, loss: 1, ok: true,
		},
		"an ended session": {
			looks: []look{at(0, say(1, 100, 1)), at(5, say(1, 600, 1)), at(6, say(2, 0, 0))},
		},
		"a decreasing count": {
			looks:   []look{at(0, say(1, 600, 1)), at(5, say(1, 100, 1))},
			records: 100, loss: 1, ok: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var s master.Speedometer
			begin := time.Unix(1000, 0)
			for _, l := range tt.looks {
				s.Observe(begin.Add(time.Duration(l.second*float64(time.Second))), master.Status{Term: l.term, Overview: taskqueue.Overview{Trainers: l.trainers}})
			}
			records, speed, loss, ok := s.Total(tt.looks[len(tt.looks)-1].trainers)
			if records != tt.records || math.Abs(speed-tt.speed) > 1e-9 || math.Abs(loss-tt.loss) > 1e-9 || ok != tt.ok {
				t.Errorf("found %d records, %g/s, loss %g, %v; want %d, %g, %g, %v", records, speed, loss, ok, tt.records, tt.speed, tt.loss, tt.ok)
			}
		})
	}
}

// A trainer that reports once per task of 40 s has a rate, also under a new leader. Its rate becomes 0 after three
// such intervals without a report, or after the timeout of its task.
func TestSpeedometerOfLongTasks(t *testing.T) {
	for name, tt := range map[string]struct {
		joined  int           // second of its first report to this leader
		every   int           // seconds between two reports
		average time.Duration // of tasks
		timeout time.Duration
		stalled int // seconds of silence after which the rate is 0
	}{
		"a new session":       {0, 40, 0, 0, 120},
		"a leader in between": {35, 40, 40 * time.Second, 0, 120},
		"a timeout":           {0, 40, 40 * time.Second, 90 * time.Second, 90},
		"frequent heartbeats": {0, 5, 10 * time.Minute, 0, 15},
		"frequent reports":    {0, 1, time.Second, 0, 10},
	} {
		t.Run(name, func(t *testing.T) {
			var s master.Speedometer
			const last = 400
			begin := time.Unix(1000, 0)
			if tt.joined == 0 {
				s.Observe(begin.Add(-time.Second), master.Status{Term: 1}) // the leader started before the trainer
			}
			for second := tt.joined; second < last+200; second++ {
				records := int64(min(second, last) / tt.every * tt.every * 10)
				if tt.joined > 0 {
					records += 1000
				}
				s.Observe(begin.Add(time.Duration(second)*time.Second), master.Status{Term: 1, Overview: taskqueue.Overview{
					Trainers: []taskqueue.TrainerOverview{say(1, records, 1)}, Sets: []taskqueue.SetOverview{{AverageTask: tt.average, Timeout: tt.timeout}},
				}})
				rate, silence := s.RecordsPerSecond(1), second-last
				switch {
				case second < tt.joined+tt.every: // one report has no rate
				case silence <= tt.stalled && rate == 0:
					t.Fatalf("rate 0 in second %d, %d s after the last report", second, silence)
				case silence > tt.stalled && rate != 0:
					t.Fatalf("rate %g, %d s after the last report, expected 0 after %d s", rate, silence, tt.stalled)
				case tt.joined == 0 && silence < 0 && rate != 10:
					t.Fatalf("rate %g in second %d, expected 10", rate, second)
				}
			}
		})
	}
}
