package pserver

import (
	"runtime"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
)

// pacedWriter works in slices on a clock of its own.
type pacedWriter struct {
	*pace
	clock     time.Time
	requests  uint64
	oversleep time.Duration
}

func newPacedWriter(rest float64) *pacedWriter {
	w := &pacedWriter{clock: time.Unix(1e9, 0)}
	w.pace = &pace{
		requests: func() uint64 { return w.requests }, rest: rest,
		now: func() time.Time { return w.clock }, sleep: func(d time.Duration) { w.clock = w.clock.Add(d + w.oversleep) },
	}
	return w
}

// write does slices of work while requests come, and says how long it took.
func (w *pacedWriter) write(slices int, took time.Duration, busy bool) time.Duration {
	began := w.clock
	for range slices {
		w.clock = w.clock.Add(took)
		if busy {
			w.requests++
		}
		w.worked(took)
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
		{"beside trainers", 3, took, 0, true, 4 * slices * took},
		{"timers that are late", 3, took, 5 * time.Millisecond, true, 4 * slices * took},
		{"many processors", 0, took, 0, true, slices * took},
		{"nobody is at work", 3, took, 0, false, slices * took},
		{"the disk is slow", 3, 10 * time.Millisecond, 0, true, slices * (10*time.Millisecond + 3*longestSlice)},
		{"the pauses have an end", 1000, took, 0, true, slices*took + slowedAtMost},
	} {
		w := newPacedWriter(tt.rest)
		if got := w.write(slices, tt.took, tt.busy); got < tt.want*98/100 || got > tt.want*102/100 {
			t.Errorf("%s: took %v, expected about %v", tt.name, got, tt.want)
		}
	}
}

// A writer whose trainers stop goes on at once.
func TestPaceOfTrainersThatStop(t *testing.T) {
	w := newPacedWriter(3)
	w.write(100, time.Millisecond, true)
	slowed := w.write(1000, time.Millisecond, false)
	if want := 1000*time.Millisecond + atWork*3/4; slowed > want+10*time.Millisecond || slowed < want-10*time.Millisecond {
		t.Errorf("1,000 ms of work after the last request took %v, expected %v", slowed, want)
	}
}

// What is written beside trainers is paced, and what is written for nobody is not.
func TestCheckpointsRest(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // of many processors the writer takes one
	table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{16 * wire.BlockElements}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newModel(optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, false, table)
	if err != nil {
		t.Fatal(err)
	}
	log, entries := logtest.NewNullLogger()
	s := newShard(logrus.NewEntry(log), 0, 1, time.Minute, 0)
	h := newHolding(m, 0)
	for _, b := range h.blocks {
		b.fill(make([]float32, b.Len), m.rule)
	}
	s.holding.Store(h)
	store := checkpoint.Store{Place: checkpoint.Disk(t.TempDir()), Step: func(string) {}}
	c := &checkpoints{shard: s, store: store, folder: store.Shard(0), start: 1, log: s.log}
	if err := c.folder.Prepare(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.folder.CountStart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, busy := range []bool{false, true} {
		c.folder.Step = func(what string) {
			if busy && what == "block written" {
				s.counters.pulled.Add(1)
			}
		}
		if err := c.saveSelf(t.Context(), checkpoint.Stop); err != nil {
			t.Fatal(err)
		}
		if rested := entries.LastEntry().Data["rested"].(time.Duration); rested > 0 != busy {
			t.Errorf("trainers at work: %t; the writer rested for %v", busy, rested)
		}
	}
}
