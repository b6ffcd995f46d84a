package load_test

import (
	"context"
	"testing"
	"time"

	"trainmaster/local/bench/load"
)

// slow is a trainer whose ops wait for a release.
type slow struct{ release chan struct{} }

func (slow) Join(context.Context) error  { return nil }
func (slow) Leave(context.Context) error { return nil }

func (s slow) Op(ctx context.Context) (counted bool, err error) {
	select {
	case <-s.release:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// A measurement that is shorter than an op lasts until the first op.
func TestMeasurementHasAnOp(t *testing.T) {
	s := slow{make(chan struct{}, 3)}
	s.release <- struct{}{} // the first task
	l, err := load.Start(t.Context(), []load.Trainer{s})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for t.Context().Err() == nil {
			time.Sleep(50 * time.Millisecond) // paces the tasks; the test waits for counts, not for this time
			select {
			case s.release <- struct{}{}:
			default:
			}
		}
	}()
	r, err := l.Measure(t.Context(), time.Microsecond, func() {})
	if err != nil || r.Ops == 0 {
		t.Errorf("expected an op, found %+v, %v", r, err)
	}
}
