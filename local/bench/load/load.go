package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Trainer is one loop. Its methods are called one after the other.
type Trainer interface {
	// Join begins a session, where there is such a thing; the end of ctx ends it.
	Join(ctx context.Context) error
	// Op finishes the held task, if any, and gets the next task. It reports whether the
	// queue counted the finish.
	Op(ctx context.Context) (counted bool, err error)
	// Leave ends the session and gives the held task back.
	Leave(ctx context.Context) error
}

// Result is what a measurement found.
type Result struct {
	Ops     int
	Elapsed time.Duration
	P50     time.Duration // of an op
	P99     time.Duration
}

// Load is trainers at work.
type Load struct {
	trainers []Trainer
	loops    errgroup.Group
	phase    atomic.Int32
	took     []Latencies // by trainer; written by its loop until that ends
	counted  sync.Once
	first    chan struct{} // closed with the first op that counts
}

const (
	warming int32 = iota
	measuring
	over
)

// Start lets all trainers join and get a first task, and then work until Measure has
// ended, or Leave is called.
func Start(ctx context.Context, trainers []Trainer) (*Load, error) {
	l := &Load{trainers: trainers, took: make([]Latencies, len(trainers)), first: make(chan struct{})}
	var joins errgroup.Group
	for i, t := range trainers {
		joins.Go(func() error {
			if err := t.Join(ctx); err != nil {
				return fmt.Errorf("trainer %d: join: %w", i, err)
			}
			if _, err := t.Op(ctx); err != nil {
				return fmt.Errorf("trainer %d: first task: %w", i, err)
			}
			return nil
		})
	}
	if err := joins.Wait(); err != nil {
		return nil, err
	}
	for i, t := range trainers {
		l.loops.Go(func() error {
			if err := l.loop(ctx, t, &l.took[i]); err != nil {
				return fmt.Errorf("trainer %d: %w", i, err)
			}
			return nil
		})
	}
	return l, nil
}

func (l *Load) loop(ctx context.Context, t Trainer, took *Latencies) error {
	began := time.Now()
	for {
		counted, err := t.Op(ctx)
		phase := l.phase.Load()
		if phase == over {
			return err
		}
		if err != nil {
			return err
		}
		ended := time.Now()
		if counted && phase == measuring {
			took.Add(ended.Sub(began))
			l.counted.Do(func() { close(l.first) })
		}
		began = ended
	}
}

// firstWithin is the time for the first op of a measurement whose length has passed.
const firstWithin = 30 * time.Second

// Measure counts ops for the given length, or until the first op if that takes longer, and stops the loops. It calls ended when the count ends; some ops are then in progress.
// Afterwards, only Leave may be called.
func (l *Load) Measure(ctx context.Context, length time.Duration, ended func()) (Result, error) {
	began := time.Now()
	l.phase.Store(measuring)
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		select {
		case <-l.first:
		case <-time.After(firstWithin):
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	l.phase.Store(over)
	elapsed := time.Since(began)
	ended()
	if err := l.end(); err != nil {
		return Result{}, err
	}
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	ops := 0
	for _, took := range l.took {
		ops += len(took)
	}
	if ops == 0 {
		return Result{}, fmt.Errorf("no task was finished within %v", elapsed.Round(time.Millisecond))
	}
	quantiles := Quantiles(l.took, 0.5, 0.99)
	return Result{Ops: ops, Elapsed: elapsed, P50: quantiles[0], P99: quantiles[1]}, nil
}

// end waits for the loops.
func (l *Load) end() error {
	l.phase.Store(over)
	return l.loops.Wait()
}

// Leave ends all sessions.
func (l *Load) Leave(ctx context.Context) error {
	err := l.end()
	var leaves errgroup.Group
	for i, t := range l.trainers {
		leaves.Go(func() error {
			if err := t.Leave(ctx); err != nil {
				return fmt.Errorf("trainer %d: leave: %w", i, err)
			}
			return nil
		})
	}
	return errors.Join(err, leaves.Wait())
}
