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
	logEvery    = 20 * time.Second
	stuckAfter  = 3 * time.Minute // limit without a finished task; the longest fault lasts 15 s
)

// errStuck is the error of a job that makes no progress or does not end.
var errStuck = errors.New("stuck")

// monitor samples the masters and detects a job without progress.
type monitor struct {
	*cluster
	began time.Time
	logf  func(format string, args ...any)

	mu      sync.Mutex // guards everything below
	samples []sample
	leader  int // index of the leader, or -1 if unknown
	terms   int // number of changes of the leader
	passed  int // number of tasks that are done or set aside
	at      time.Time
	longest time.Duration // longest time without progress
}

func newMonitor(c *cluster, logf func(string, ...any)) *monitor {
	now := time.Now()
	return &monitor{cluster: c, began: now, logf: logf, leader: -1, at: now}
}

// run samples until ctx ends. It returns an error if the job makes no progress.
func (m *monitor) run(ctx context.Context) error {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	logged := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		m.sampleAll(ctx)
		if idle := m.idle(); idle > stuckAfter && ctx.Err() == nil {
			return fmt.Errorf("%w: no task was finished for %v", errStuck, idle.Round(time.Second))
		}
		if time.Since(logged) >= logEvery {
			logged = time.Now()
			m.mu.Lock()
			m.logf("pass %d, %d tasks counted, %d terms, longest pause %v", m.passed/tasksPerPass+1, m.passed, m.terms, m.longest.Round(100*time.Millisecond))
			m.mu.Unlock()
		}
	}
}

// sampleAll samples all masters concurrently, so that a paused master does not delay the others.
func (m *monitor) sampleAll(ctx context.Context) {
	var wg sync.WaitGroup
	found := make([]map[string]float64, masters)
	for i, addr := range m.tools {
		wg.Go(func() { found[i], _ = scrape(ctx, addr) }) // a dead master has no sample
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

// advance records the progress that a leader reports.
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

func (m *monitor) idle() time.Duration {
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

// awaitTasks waits until n tasks are done or set aside. It has no time limit, because run detects a stuck job.
func (m *monitor) awaitTasks(ctx context.Context, n int) error {
	for m.tasksPassed() < n {
		if rest(ctx, sampleEvery); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}
