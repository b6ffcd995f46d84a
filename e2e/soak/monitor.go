package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	sampleEvery = time.Second
	sayEvery    = 20 * time.Second
	stuckAfter  = 3 * time.Minute // without a task that is over; the longest fault lasts 15 s
)

// errStuck says that the job does not go on, or not end.
var errStuck = errors.New("stuck")

// monitor samples the masters, and notices when the job does not go on.
type monitor struct {
	*cluster
	began time.Time
	say   func(format string, args ...any)

	mu      sync.Mutex // guards everything below
	samples []sample
	leader  int // number of the master that leads, -1: none is known to
	terms   int // changes of it
	passed  int // tasks that are over
	at      time.Time
	longest time.Duration // between two looks that found more tasks over
}

func newMonitor(c *cluster, say func(string, ...any)) *monitor {
	now := time.Now()
	return &monitor{cluster: c, began: now, say: say, leader: -1, at: now}
}

// run samples until ctx ends. It returns an error when the job stands still.
func (m *monitor) run(ctx context.Context) error {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	said := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		m.look(ctx)
		if still := m.still(); still > stuckAfter && ctx.Err() == nil {
			return fmt.Errorf("%w: no task was finished for %v", errStuck, still.Round(time.Second))
		}
		if time.Since(said) >= sayEvery {
			said = time.Now()
			m.mu.Lock()
			m.say("pass %d, %d tasks counted, %d terms, longest pause %v", m.passed/tasksPerPass+1, m.passed, m.terms, m.longest.Round(100*time.Millisecond))
			m.mu.Unlock()
		}
	}
}

// look samples all masters together: one that is stopped must not hide the others.
func (m *monitor) look(ctx context.Context) {
	var wg sync.WaitGroup
	found := make([]map[string]float64, masters)
	for i, addr := range m.tools {
		wg.Go(func() { found[i], _ = scrape(ctx, addr) }) // a master that is down says nothing
	}
	wg.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, values := range found {
		if values == nil {
			continue
		}
		s := sample{at: time.Since(m.began), master: i, leading: values[metricLeading] == 1, values: values}
		m.samples = append(m.samples, s)
		if n, ok := s.passed(); ok {
			m.advance(i, n)
		}
	}
}

// advance notes what a leader says.
func (m *monitor) advance(leader, passed int) {
	if leader != m.leader {
		m.leader = leader
		m.terms++
	}
	if passed > m.passed {
		now := time.Now()
		m.longest = max(m.longest, now.Sub(m.at))
		m.passed, m.at = passed, now
	}
}

func (m *monitor) still() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.at)
}

func (m *monitor) leading() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leader
}

func (m *monitor) tasksPassed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.passed
}

// awaitTasks waits until so many tasks are over. That it takes for ever is run's to notice.
func (m *monitor) awaitTasks(ctx context.Context, n int) error {
	for m.tasksPassed() < n {
		if rest(ctx, sampleEvery); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}
