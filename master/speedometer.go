package master

import (
	"sync"
	"time"

	"trainmaster/taskqueue"
)

// Speedometer computes the training rate from the record counts that trainers send with requests and heartbeats. It is
// safe for concurrent use. Its user must observe at least every second.
//
// For each session, it keeps the reports of the last speedWindow, and at least the last keptReports, because some
// trainers report only at the end of a task. The rate is computed from the oldest and the newest of these reports. A
// session older than the term has no rate before its second report: the first report counts records that were trained
// long ago.
type Speedometer struct {
	mu       sync.Mutex
	now      time.Time // of the last observation
	term     uint64
	old      uint64               // sessions up to this incarnation are older than the term
	sessions map[uint64][]reading // by incarnation, oldest first
	average  time.Duration        // of the tasks, 0: unknown
	timeout  time.Duration        // of a task, 0: unknown
}

// reading is a count of records and when it was first seen.
type reading struct {
	at      time.Time
	records int64
}

const (
	speedWindow = 15 * time.Second // three heartbeats
	keptReports = 3
	stalledFor  = 10 * time.Second // two heartbeats: a session is never called stalled before
	stalledGaps = 3                // times the longest interval of reports without another record: the rate is 0
	stalledTask = 2                // the same in average tasks, while the interval is not known well
)

// Observe records the current reports of the trainers and removes trainers that are gone.
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
	s.average, s.timeout = 0, 0
	for _, set := range status.Sets {
		s.average, s.timeout = max(s.average, set.AverageTask), max(s.timeout, set.Timeout)
	}
	sessions := make(map[uint64][]reading, len(status.Trainers))
	for _, t := range status.Trainers {
		seen, n := s.sessions[t.Incarnation], t.Progress.Records
		if len(seen) > 0 && 0 < n && n < seen[len(seen)-1].records {
			seen = nil
		}
		if len(seen) == 0 && (n > 0 || t.Incarnation > s.old) || n > 0 && seen[len(seen)-1].records != n {
			seen = append(seen, reading{now, n})
		}
		for len(seen) > keptReports && now.Sub(seen[0].at) > speedWindow {
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
	if elapsed <= 0 || last.records < first.records || s.now.Sub(last.at) > s.patience(seen) {
		return 0
	}
	return float64(last.records-first.records) / elapsed.Seconds()
}

// patience is the silence after which a session with these reports counts as stalled. The maximum is the task timeout,
// after which the task is dispatched to another trainer.
func (s *Speedometer) patience(seen []reading) time.Duration {
	var longest time.Duration
	for i, r := range seen[1:] {
		longest = max(longest, r.at.Sub(seen[i].at))
	}
	silence := stalledGaps * longest
	if len(seen) < keptReports {
		silence = max(silence, stalledTask*s.average)
	}
	if s.timeout > 0 {
		silence = min(silence, s.timeout)
	}
	return max(stalledFor, silence)
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
