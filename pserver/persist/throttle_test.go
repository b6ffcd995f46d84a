package persist

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
)

// pacedWriter works in slices on a clock of its own.
type pacedWriter struct {
	*throttle
	clock     time.Time
	gradients uint64
	oversleep time.Duration
}

func newPacedWriter(rest float64) *pacedWriter {
	w := &pacedWriter{clock: time.Unix(1e9, 0)}
	w.throttle = &throttle{
		gradients: func() uint64 { return w.gradients }, rest: rest,
		now: func() time.Time { return w.clock }, sleep: func(d time.Duration) { w.clock = w.clock.Add(d + w.oversleep) },
	}
	return w
}

// write does slices of work while requests come, and returns the duration.
func (w *pacedWriter) write(slices int, took time.Duration, busy bool) time.Duration {
	began := w.clock
	for range slices {
		w.clock = w.clock.Add(took)
		if busy {
			w.gradients++
		}
		w.worked(1, took)
	}
	return w.clock.Sub(began)
}

func TestPace(t *testing.T) {
	const slices, took = 10_000, 300 * time.Microsecond
	for _, tt := range []struct {
		name      string
		rest      float64
		took      time.Duration
		oversleep time.Duration
		busy      bool
		want      time.Duration
	}{
		{"with trainers", 3, took, 0, true, 4 * slices * took},
		{"timers that are late", 3, took, 5 * time.Millisecond, true, 4 * slices * took},
		{"many processors", 0, took, 0, true, slices * took},
		{"no trainer", 3, took, 0, false, slices * took},
		{"the disk is slow", 3, 10 * time.Millisecond, 0, true, slices * (10*time.Millisecond + 3*longestSlice)},
		{"the pauses have an end", 1000, took, 0, true, slices*took + slowedAtMost},
	} {
		w := newPacedWriter(tt.rest)
		if got := w.write(slices, tt.took, tt.busy); got < tt.want*98/100 || got > tt.want*102/100 {
			t.Errorf("%s: took %v, expected about %v", tt.name, got, tt.want)
		}
	}
}

// When trainers stop, the writer continues without rests.
func TestPaceOfTrainersThatStop(t *testing.T) {
	w := newPacedWriter(3)
	w.write(100, time.Millisecond, true)
	slowed := w.write(1000, time.Millisecond, false)
	if want := 1000*time.Millisecond + atWork*3/4; slowed > want+10*time.Millisecond || slowed < want-10*time.Millisecond {
		t.Errorf("1,000 ms of work after the last request took %v, expected %v", slowed, want)
	}
}

// A checkpoint with a limit is complete in time if the disk is fast enough: rests use only the remaining time.
func TestPaceWithALimit(t *testing.T) {
	const slices, took = 10_000, 300 * time.Microsecond // 3 s of work, 12 s with rests
	for _, tt := range []struct {
		limit, least, most time.Duration
	}{
		{time.Minute, 11 * time.Second, 13 * time.Second},
		{10 * time.Second, 6 * time.Second, 7500 * time.Millisecond},
		{5 * time.Second, 3 * time.Second, 3800 * time.Millisecond},
		{4 * time.Second, 3 * time.Second, 3010 * time.Millisecond},
		{time.Second, 3 * time.Second, 3010 * time.Millisecond},
	} {
		w := newPacedWriter(3)
		w.total = slices
		w.within(tt.limit)
		if got := w.write(slices, took, true); got < tt.least || got > tt.most {
			t.Errorf("with a limit of %v: took %v, expected %v to %v", tt.limit, got, tt.least, tt.most)
		}
	}
	w := newPacedWriter(3) // the last slices are slower
	w.total = slices
	w.within(10 * time.Second)
	if got := w.write(slices/2, took, true) + w.write(slices/2, 2*took, true); got > 10*time.Second {
		t.Errorf("a disk that grows slow: took %v of 10 s", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if p := newThrottle(ctx, 1, func() uint64 { return 0 }); time.Until(p.due) > 45*time.Minute || time.Until(p.due) < 40*time.Minute {
		t.Errorf("of an hour, data are to be written in %v", time.Until(p.due))
	}
}

// A checkpoint during training is paced, and a checkpoint without gradients is not.
func TestCheckpointsRest(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // of many processors the writer takes one
	table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{16 * placement.BlockElements}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, false, table)
	if err != nil {
		t.Fatal(err)
	}
	log, entries := logtest.NewNullLogger()
	s := core.New(nil, 0, 1, time.Minute, 0)
	begin(t, s, m)
	store := checkpoint.Store{Place: checkpoint.Disk(t.TempDir()), Points: func(string) error { return nil }}
	c := &Checkpoints{shard: s, store: store, folder: store.Shard(0), start: 1, log: logrus.NewEntry(log)}
	if err := c.folder.Prepare(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.folder.CountStart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what string
		came *atomic.Uint64 // after each block
		busy bool
	}{
		{"nobody", &atomic.Uint64{}, false},
		{"trainers", &s.Counters.Pushed, true},
		{"trainers whose frames are repeated", &s.Counters.Duplicates, true},
		{"synchronous trainers", &s.Counters.Staged, true},
		{"trainers of tables", &s.Counters.RowsPushed, true},
		{"synchronous trainers of tables", &s.Counters.RowsStaged, true},
		{"an evaluation", &s.Counters.Pulled, false},
		{"an evaluation of tables", &s.Counters.RowsLookedUp, false},
	} {
		c.folder.Points = func(what string) error {
			if what == "block written" {
				tt.came.Add(1)
			}
			return nil
		}
		if _, err := savePart(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if rested := entries.LastEntry().Data["rested"].(time.Duration); rested > 0 != tt.busy {
			t.Errorf("%s: the writer rested for %v; trainers are at work: %t", tt.what, rested, tt.busy)
		}
	}
}
