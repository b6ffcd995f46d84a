package master

import (
	"context"
	"strings"
	"testing"
	"time"

	"trainmaster/taskqueue"
)

// cutTogether is parameter servers of a job that goes back as a whole: they are as it wants them.
type cutTogether struct{ *cutting }

func (cutTogether) States(context.Context) ([]ShardState, error) {
	return []ShardState{{Present: true, Ready: true, Rewound: 1}}, nil
}

func (cutTogether) Rewind(context.Context, uint64, uint32, []byte, []byte) error { return nil }

// A cut that waits for a trainer without a task, whose process hangs while its heartbeats go on, is given up after its time, names
// that trainer and no other one, and is tried again: it succeeds once that process has ended.
func TestCutNamesWhoHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		shards := &cutting{store: store, abouts: map[uint64]About{}, versions: map[uint64]uint64{}}
		config := Config{CheckpointEvery: Cadence{Time: time.Minute}, CheckpointKeep: 1, Queue: taskqueue.Options{Cuts: true, ExplicitCommit: true, SessionTTL: 20 * time.Second}}
		m, stop, ended := leads(t, store, config, cutTogether{shards})
		defer func() {
			stop()
			<-ended
		}()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		register(t, m, 4)
		member := func(id string) *worker {
			w := joins(t, m, id)
			if _, _, err := m.LastStep(t.Context(), &taskqueue.LastStep{Trainer: w.Ordinal, Incarnation: w.Incarnation, Epoch: 1}); err != nil {
				t.Fatal(err)
			}
			return w
		}
		works, hangs := member("works"), member("hangs")
		works.beats(ctx, false)
		lives, dies := context.WithCancel(ctx)
		defer dies()
		hangs.beats(lives, false)
		go func() { // stands still for each cut
			for ctx.Err() == nil {
				if p, done, err := m.CutWatch(ctx, &taskqueue.CutWatch{Trainer: works.Ordinal, Incarnation: works.Incarnation}); err == nil && done {
					_, _, _ = m.Flushed(ctx, &taskqueue.StepFlushed{Trainer: works.Ordinal, Incarnation: works.Incarnation, Generation: p.Generation, Step: p.Round})
				}
				pause(ctx, 10*time.Millisecond)
			}
		}()
		time.Sleep(2 * beginTimeout)
		if failure := m.current.Load().checkpoints.status().Failure; !strings.Contains(failure, "waited for hangs: if") {
			t.Errorf("a trainer hangs, and the last attempt failed with %q", failure)
		}
		dies()
		time.Sleep(config.Queue.SessionTTL + 2*beginTimeout)
		if s := m.current.Load().checkpoints.status(); s.Set == 0 || s.Failure != "" {
			t.Errorf("its process has ended, and there is no set: %+v", s)
		}
	})
}
