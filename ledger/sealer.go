package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/internal/failpoint"
	"trainmaster/taskqueue"
)

// Sealer seals the ledger of a job while this process leads it. Its methods may be called at
// any time; Run is for one term after the other.
type Sealer struct {
	Store  Store
	Config Config
	Log    *logrus.Entry

	through, failures, bytes atomic.Int64
	failure                  atomic.Value // string: why the last attempt failed; "": it did not
	hang                     hang

	points failpoint.Hook
	retry  time.Duration // 0: retryPause
}

// Status is the progress of sealing.
type Status struct {
	Sealed   uint64 // last sealed commit that this process has seen
	Bytes    int64  // size of the kept sealed files
	Failures int64  // number of failed attempts
	Failure  string // error of the last attempt; "": none
	Dir      string // of the job; "": files are kept in etcd
	// Hangs is the time for which the directory has not answered. It is 0 below 10 s.
	Hangs time.Duration
}

// Status returns the progress of sealing.
func (s *Sealer) Status() Status {
	failure, _ := s.failure.Load().(string)
	return Status{
		Sealed: uint64(s.through.Load()), Bytes: s.bytes.Load(), Failures: s.failures.Load(), Failure: failure,
		Dir: s.Config.directory(), Hangs: s.hang.lasts(),
	}
}

// Progress is the progress of the commits of a job.
type Progress struct {
	Commit uint64 // the last commit
	Bytes  uint64 // of events, written by this process
}

const (
	lookEvery   = 250 * time.Millisecond
	retryPause  = 10 * time.Second
	pageCommits = 500
	deleteBatch = 1000 // commits
)

// Check checks that this process sees the sealed part of the ledger, and that its directory belongs to the job. It returns
// ErrElsewhere if not; other errors mean that the result is unknown. jobID is "" if it is unknown.
func (s *Sealer) Check(ctx context.Context, jobID string) error {
	head, _, begin, err := readHead(ctx, s.Store)
	if err != nil {
		return err
	}
	return s.sees(head, begin.Replaced, jobID, Directory{Dir: s.Config.directory()})
}

// sees compares the head with the directory. Before the first sealing, the directory can belong to a replaced job.
func (s *Sealer) sees(head Head, replaced []string, jobID string, directory interface{ ID() (string, error) }) error {
	dir := s.Config.directory()
	switch {
	case head.sealed() && head.Directory == "" && dir != "":
		return fmt.Errorf("%w: expected no ledger directory, because the ledger is in etcd: start without --ledger-dir", ErrElsewhere)
	case head.sealed() && head.Directory != "" && dir == "":
		return fmt.Errorf("%w: expected the directory %s, found none: set --ledger-dir to its parent", ErrElsewhere, head.Directory)
	case dir == "":
		return nil
	}
	id, err := directory.ID()
	switch {
	case err != nil:
		return err
	case head.sealed() && id == "":
		return fmt.Errorf("%w: %s: expected the ledger of the job, which was in %s, found no ledger: is it mounted?", ErrElsewhere, dir, head.Directory)
	case head.sealed() && id != head.ID, id != "" && jobID != "" && id != jobID && !slices.Contains(replaced, id):
		return fmt.Errorf("%w: %s: expected the ledger of this job, found the ledger of another job with id %s: set another --ledger-dir, or move that directory", ErrElsewhere, dir, id)
	}
	return nil
}

// Run seals while the lock is held. It returns when ctx ends, when the lock is lost
// (taskqueue.ErrFenced); whatever else goes wrong is logged and tried again.
func (s *Sealer) Run(ctx context.Context, lock Lock, jobID string, progress func() Progress) error {
	d := s.Begin(lock, jobID)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-pause.C:
		}
		next, err := d.Round(ctx, progress())
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		pause.Reset(next)
	}
}

// Sealing is the sealing of one term without a clock of its own: Run drives it in real time, a
// simulator in virtual time. It is for one goroutine.
type Sealing struct{ w *work }

// Begin begins the sealing of a term.
func (s *Sealer) Begin(lock Lock, jobID string) *Sealing {
	w := &work{Sealer: s, Config: s.Config.withDefaults(), lock: lock, id: jobID}
	w.archive = parts{s.Store, lock}
	if dir := w.directory(); dir != "" {
		w.disk = watched{Directory{Dir: dir, points: s.points}, &s.hang, s.Log}
		w.archive = w.disk
	}
	return &Sealing{w}
}

// Round seals all due commits, and returns the pause before the next round. An error ends the term; other failures are logged,
// and the next round tries again.
func (d *Sealing) Round(ctx context.Context, now Progress) (pause time.Duration, err error) {
	s := d.w.Sealer
	err = d.w.round(ctx, now)
	s.hang.roundEnded(s.Log, s.Config.directory())
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case errors.Is(err, taskqueue.ErrFenced), errors.Is(err, failpoint.ErrCrash):
		return 0, fmt.Errorf("seal the ledger: %w", err)
	case err != nil:
		s.failures.Add(1)
		if before, _ := s.failure.Swap(err.Error()).(string); before == "" {
			s.Log.WithError(err).Error("the ledger cannot be sealed: it stays in etcd, and is tried again")
		}
		d.w.loaded = false
		return cmp.Or(s.retry, retryPause), nil
	}
	if before, _ := s.failure.Swap("").(string); before != "" {
		s.Log.Info("the ledger can be sealed again")
	}
	return lookEvery, nil
}
