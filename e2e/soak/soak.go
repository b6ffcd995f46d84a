package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sync/errgroup"

	"trainmaster/local/bench"
	"trainmaster/taskqueue"
)

// soak is one soak run.
type soak struct {
	program string // the program under test
	seed    uint64
	length  time.Duration // of the time with faults
	dir     string        // parent of the run's directory
	logf    func(format string, args ...any)
}

// Bounds of the phases without faults.
const (
	warmPasses  = 2 // before the first fault
	calmPasses  = 2 // after the last fault
	lastPasses  = 2 // after the restart of the masters
	endPatience = 5 * time.Minute
)

// run always returns a report. The error is the cause of an interruption.
func (s *soak) run(ctx context.Context) (*report, error) {
	r := &report{Seed: s.seed, Etcd: etcdMembers, Masters: masters, Trainers: trainerProcesses * trainersPerOne, Tasks: tasksPerPass, Faults: map[string]int{}}
	dir, err := os.MkdirTemp(s.dir, "trainmaster-soak-")
	if err != nil {
		return r, err
	}
	r.Dir = dir
	s.logf("seed %d, %v with faults, directory %s", s.seed, s.length, dir)
	if err := s.within(ctx, dir, r); err != nil {
		r.Failures = append(r.Failures, err.Error())
	}
	if ctx.Err() != nil {
		os.RemoveAll(dir)
		return r, context.Cause(ctx)
	}
	if r.Passed = len(r.Failures) == 0; r.Passed {
		os.RemoveAll(dir)
		r.Dir = ""
	}
	return r, nil
}

// within runs the phases in a directory.
func (s *soak) within(ctx context.Context, dir string, r *report) error {
	c, err := newCluster(dir, s.program)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.start(ctx); err != nil {
		return err
	}
	m := newMonitor(c, s.logf)
	watched, stop := context.WithCancel(ctx)
	group, watched := errgroup.WithContext(watched)
	group.Go(func() error { return m.run(watched) })
	group.Go(func() error {
		select {
		case err := <-c.died:
			return err
		case <-watched.Done():
			return nil
		}
	})
	group.Go(func() error {
		defer stop()
		return s.phases(watched, c, m, r)
	})
	err = group.Wait()
	r.Terms, r.LongestPause = m.terms, seconds(m.longest)
	if errors.Is(err, errStuck) {
		r.Stuck = 1
	}
	if err != nil {
		return err
	}
	return s.check(ctx, c, m, r)
}

// phases runs the phases until the job has ended.
func (s *soak) phases(ctx context.Context, c *cluster, m *monitor, r *report) error {
	if err := m.awaitTasks(ctx, warmPasses*tasksPerPass); err != nil {
		return err
	}
	faulty, cancel := context.WithTimeout(ctx, s.length)
	defer cancel()
	began := time.Now()
	i := &injector{cluster: c, leader: m.leading, logf: s.logf, made: r.Faults}
	err := i.run(faulty, s.seed)
	r.Minutes, r.Skipped = time.Since(began).Minutes(), i.skipped
	if err != nil || ctx.Err() != nil {
		return err
	}
	s.logf("no more faults")
	if err := m.awaitTasks(ctx, m.tasksPassed()+calmPasses*tasksPerPass); err != nil {
		return err
	}
	r.Passes = m.tasksPassed()/tasksPerPass + lastPasses
	return s.end(ctx, c, r.Passes)
}

// end restarts the masters with a number of passes and waits until all processes have ended.
func (s *soak) end(ctx context.Context, c *cluster, passes int) error {
	s.logf("the job ends after pass %d", passes)
	for _, p := range c.masters {
		if err := p.leave(ctx); err != nil {
			return err
		}
	}
	c.setPasses(passes)
	for _, p := range c.masters {
		if err := p.start(); err != nil {
			return err
		}
		p.letEnd()
	}
	for _, p := range c.trainers {
		p.letEnd()
	}
	for _, p := range append(c.trainers[:], c.masters[:]...) {
		if err := p.awaitEnd(ctx, endPatience); err != nil {
			return err
		}
	}
	return nil
}

// check runs all checks and adds the failures to the report.
func (s *soak) check(ctx context.Context, c *cluster, m *monitor, r *report) error {
	fail := func(err error) {
		if err != nil {
			r.Failures = append(r.Failures, err.Error())
		}
	}
	fail(s.verify(ctx, c, r))
	fail(s.audit(ctx, c, r))
	r.Flat = flat(m.samples, time.Since(m.began))
	for i := range r.Flat {
		fail(r.Flat[i].err())
	}
	for _, p := range c.processes() {
		fail(readLog(p))
	}
	return ctx.Err()
}

// verify runs `master verify`.
func (s *soak) verify(ctx context.Context, c *cluster, r *report) error {
	out, err := c.run(ctx, "verify", "-o", "json")
	var reports []taskqueue.PassReport
	if decoding := json.Unmarshal(out, &reports); err == nil {
		err = decoding
	}
	for _, p := range reports {
		r.Redelivered += p.Redelivered
		r.SetAside += p.SetAside
		if want := (taskqueue.PassReport{Pass: p.Pass, Tasks: tasksPerPass, CountedOnce: tasksPerPass, Redelivered: p.Redelivered}); p != want {
			err = errors.Join(err, fmt.Errorf("pass %d: found %+v, expected every task counted once", p.Pass, p))
		}
	}
	if len(reports) != r.Passes {
		err = errors.Join(err, fmt.Errorf("found %d passes, expected %d", len(reports), r.Passes))
	}
	if err != nil {
		return fmt.Errorf("master verify: %w", err)
	}
	return nil
}

// audit compares the ledger with the journals.
func (s *soak) audit(ctx context.Context, c *cluster, r *report) error {
	a := newAudit()
	for i := range c.trainers {
		file, err := os.Open(c.journal(i))
		if err != nil {
			return err
		}
		err = a.journal(file)
		file.Close()
		if err != nil {
			return err
		}
	}
	for ev, err := range bench.LedgerEvents(ctx, c.store) {
		if err != nil {
			return err
		}
		a.event(&ev)
	}
	r.Counted, r.Sessions, r.LostSessions = len(a.counted), a.sessions, a.lost
	r.Missing, r.CountedTwice = len(a.missing(r.Passes)), len(a.twice)
	return errors.Join(a.errs(r.Passes)...)
}

// fatalText matches texts that no log may contain.
var fatalText = regexp.MustCompile(`WARNING: DATA RACE|panic: .*|fatal error: .*|an event was dropped`)

func readLog(p *process) error {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	if found := fatalText.Find(text); found != nil {
		return fmt.Errorf("%s: found %q in its log %s", p.name, found, filepath.Base(p.log))
	}
	return nil
}
