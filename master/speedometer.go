package master

import (
	"sync"
	"time"

	"trainmaster/taskqueue"
)

// Speedometer tells how fast trainers train, from the counts of records that they report
// with their requests and heartbeats. It is safe for concurrent use; whoever has one
// observes at least every second.
//
// Of each session it keeps the reports of the last speedWindow: the rate is that between
// the oldest and the newest of them. A session that was there when the term began has no
// rate before its second report: the first one names records that were trained long ago.
type Speedometer struct {
	mu       sync.Mutex
	now      time.Time // of the last observation
	term     uint64
	old      uint64               // sessions up to this incarnation were there when the term began
	sessions map[uint64][]reading // by incarnation, oldest first
}

// reading is a count of records and when it was first seen.
type reading struct {
	at      time.Time
	records int64
}

const (
	speedWindow = 15 * time.Second // three heartbeats
	stalledFor  = 10 * time.Second // two heartbeats without another record: the rate is 0
)

// Observe takes note of what the trainers report now, and forgets those that are gone.
func (s *Speedometer) Observe(now time.Time, status Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
	if s.term != status.Term {
		s.term, s.old = status.Term, 0
		for _, t := range status.Trainers {
			s.old = max(s.old, t.Incarnation)
		}
	}
	sessions := make(map[uint64][]reading, len(status.Trainers))
	for _, t := range status.Trainers {
		seen, n := s.sessions[t.Incarnation], t.Progress.Records
		if len(seen) == 0 && (n > 0 || t.Incarnation > s.old) || n > 0 && seen[len(seen)-1].records != n {
			seen = append(seen, reading{now, n})
		}
		for len(seen) > 0 && now.Sub(seen[0].at) > speedWindow {
			seen = seen[1:]
		}
		if len(seen) > 0 {
			sessions[t.Incarnation] = seen
		}
	}
	s.sessions = sessions
}

// RecordsPerSecond is the rate of one session, 0 while it is not known, and when the session has trained no record lately.
func (s *Speedometer) RecordsPerSecond(incarnation uint64) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.sessions[incarnation]
	if len(seen) < 2 {
		return 0
	}
	first, last := seen[0], seen[len(seen)-1]
	elapsed := last.at.Sub(first.at)
	if elapsed <= 0 || last.records < first.records || s.now.Sub(last.at) > stalledFor {
		return 0
	}
	return float64(last.records-first.records) / elapsed.Seconds()
}

// Total sums up what the trainers report: records trained, the rate, and the mean loss,
// weighted by the rates where there are any. ok says that any trainer reported a loss.
func (s *Speedometer) Total(trainers []taskqueue.TrainerOverview) (records int64, perSecond, loss float64, ok bool) {
	var weighted, plain float64
	var reported int
	for _, t := range trainers {
		if t.Progress.Records <= 0 {
			continue
		}
		rate := s.RecordsPerSecond(t.Incarnation)
		records += t.Progress.Records
		perSecond += rate
		weighted += rate * t.Progress.Loss
		plain += t.Progress.Loss
		reported++
	}
	switch {
	case reported == 0:
		return 0, 0, 0, false
	case perSecond > 0:
		return records, perSecond, weighted / perSecond, true
	}
	return records, 0, plain / float64(reported), true
}
