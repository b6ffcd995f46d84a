package pscontrol

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/taskqueue"
)

// cutTerm is a term of a queue with a trainer that has flushed a cut.
type cutTerm struct {
	fakeTerm
	q        *taskqueue.Queue
	released int
}

func newCutTerm(t *testing.T) *cutTerm {
	t.Helper()
	f := &cutTerm{q: taskqueue.New("job", [16]byte{1}, 1, taskqueue.Options{Cuts: true, ExplicitCommit: true})}
	apply := func(ev taskqueue.Event) taskqueue.Answer {
		a := f.q.Apply(1, ev)
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		return a
	}
	trainer := apply(&taskqueue.Join{ID: "a"})
	apply(&taskqueue.LastStep{Trainer: trainer.Ordinal, Incarnation: trainer.Incarnation})
	apply(&taskqueue.CutBegin{Step: 1})
	apply(&taskqueue.StepFlushed{Trainer: trainer.Ordinal, Incarnation: trainer.Incarnation, Step: 1})
	return f
}

func (f *cutTerm) Read(_ context.Context, look func(*taskqueue.Queue)) error {
	look(f.q)
	return nil
}

func (f *cutTerm) Wait(_ context.Context, ev taskqueue.Event) (taskqueue.Answer, error) {
	if _, ok := ev.(*taskqueue.CutRelease); ok {
		f.released++
	}
	a := f.q.Apply(1, ev)
	return a, a.Err
}

// Another component takes a cut, and all trainers have stopped for it. The component for checkpoints does not release them before the
// cut has ended.
func TestTrainersStayStoppedDuringACutOfTheScaler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := newCutTerm(t)
		c := newTerm(now, New(Config{Servers: None{}, Cuts: true, Log: logrus.NewEntry(logrus.New())}).config).checkpoints
		if err := c.busy.Acquire(t.Context()); err != nil { // the cut of the scaler
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.release(t.Context()) }()
		synctest.Wait()
		if now.released != 0 {
			t.Fatal("trainers were released before the servers fixed the cut")
		}
		if err := c.rollbacks.event(t.Context(), &taskqueue.CutRelease{}); err != nil {
			t.Fatal(err)
		}
		c.busy.Release()
		if err := <-ended; err != nil || now.released != 1 {
			t.Errorf("released %d times, %v: expected the release of the scaler alone", now.released, err)
		}
	})
}

// Trainers that the cut of an earlier leader holds are released.
func TestTrainersOfAnEarlierCutAreReleased(t *testing.T) {
	now := newCutTerm(t)
	c := newTerm(now, New(Config{Servers: None{}, Cuts: true, Log: logrus.NewEntry(logrus.New())}).config).checkpoints
	if err := c.release(t.Context()); err != nil || now.released != 1 || now.q.StepsDue().Release {
		t.Errorf("released %d times, %v, trainers still held: %v", now.released, err, now.q.StepsDue().Release)
	}
}

// After failed attempts that leave files on the disk, the pauses grow. After attempts that leave no files, and after
// a success, the next attempt follows soon.
func TestBackoffOfFailedCheckpoints(t *testing.T) {
	now := time.Unix(0, 0)
	var p backoff
	if p.again.After(now) {
		t.Error("first attempt: expected no pause")
	}
	full := errors.New("disk full")
	for i, want := range []struct {
		err   error
		pause time.Duration
	}{
		{full, time.Second}, {full, 2 * time.Second}, {full, 4 * time.Second}, {ErrNothingToCut, time.Second}, {full, 2 * time.Second},
		{fmt.Errorf("cut 3: %w", errNotFlushed), time.Second},
	} {
		p.failed(now, want.err)
		if p.again != now.Add(want.pause) {
			t.Errorf("after failure %d the pause is %v, expected %v", i+1, p.pause, want.pause)
		}
	}
	for range 20 {
		p.failed(now, full)
	}
	if p.pause != checkpointPause {
		t.Errorf("the longest pause is %v, expected %v", p.pause, checkpointPause)
	}
}
