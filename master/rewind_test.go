package master

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"trainmaster/master/pscontrol"
	"trainmaster/taskqueue"
)

// cutTogether implements parameter servers of a job with rollbacks. They are always at the epoch of the job.
type cutTogether struct{ *cutting }

func (cutTogether) States(context.Context) ([]pscontrol.ServerState, error) {
	return []pscontrol.ServerState{{Present: true, Ready: true, Epoch: 1, KeepsCheckpoints: true}}, nil
}

func (cutTogether) Rollback(context.Context, uint64, uint32, []byte, []byte) error { return nil }

// retiringTogether records the ended sessions at the beginning of a cut.
type retiringTogether struct {
	cutTogether
	mu            sync.Mutex
	floor         uint64
	spared        []uint64
	unreachable   error // result of Retire; nil: received
	absent        bool  // no cut is possible
	statesTake    time.Duration
	floorAtBegin  uint64
	sparedAtBegin []uint64
}

func (s *retiringTogether) States(ctx context.Context) ([]pscontrol.ServerState, error) {
	s.mu.Lock()
	takes := s.statesTake
	s.mu.Unlock()
	pause(ctx, takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	return []pscontrol.ServerState{{Present: !s.absent, Ready: true, Epoch: 1, KeepsCheckpoints: true}}, nil
}

func (s *retiringTogether) Retire(_ context.Context, _ uint64, _ [16]byte, floor uint64, spared []uint64, _ *uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unreachable != nil {
		return s.unreachable
	}
	s.floor, s.spared = floor, spared
	return nil
}

func (s *retiringTogether) Begin(ctx context.Context, of pscontrol.CutRequest) (pscontrol.Cut, error) {
	s.mu.Lock()
	s.floorAtBegin, s.sparedAtBegin = s.floor, s.spared
	s.mu.Unlock()
	return s.cutTogether.Begin(ctx, of)
}

func (s *retiringTogether) overAtBegin(incarnation uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return incarnation < s.floorAtBegin && !slices.Contains(s.sparedAtBegin, incarnation)
}

// A trainer with a task hangs while its heartbeats continue. The cut that waits for it is abandoned after its timeout
// with the name of this trainer only, and is retried.
func TestCutNamesTrainerThatHangsWithATask(t *testing.T) { testSilentAtACut(t, true) }

// Without a task, no timeout of a task would end the wait. After 10 s the session of the trainer ends, the parameter
// servers receive it, and the cut continues.
func TestCutFencesTrainerThatHangsWithoutATask(t *testing.T) { testSilentAtACut(t, false) }

func testSilentAtACut(t *testing.T, withTask bool) {
	t.Helper()
	bubble(t, func(t *testing.T) {
		store := newMemory()
		shards := &cutting{store: store, abouts: map[uint64]pscontrol.About{}, versions: map[uint64]uint64{}}
		config := Config{Queue: taskqueue.Options{Cuts: true, ExplicitCommit: true, SessionTTL: 20 * time.Second}}
		servers := &retiringTogether{cutTogether: cutTogether{shards}, absent: true}
		m, stop, ended := leads(t, store, config, servers, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: time.Minute}, CheckpointKeep: 1})
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
		works.sendHeartbeats(ctx, false)
		if withTask {
			request := &taskqueue.Request{Trainer: hangs.Ordinal, Incarnation: hangs.Incarnation, Seq: 1, Ack: 1, Want: true, Epoch: 1}
			if reply, err := m.Next(t.Context(), request); err != nil || reply.Assignment == nil {
				t.Fatalf("expected a task, got %+v, %v", reply, err)
			}
		}
		go func() { // continues after the end of the session
			for ctx.Err() == nil {
				_, _ = m.Heartbeat(ctx, &taskqueue.Heartbeat{Trainer: hangs.Ordinal, Incarnation: hangs.Incarnation})
				pause(ctx, 3*time.Second)
			}
		}()
		go func() { // flushes each cut
			for ctx.Err() == nil {
				if p, done, err := m.CutWatch(ctx, &taskqueue.CutWatch{Trainer: works.Ordinal, Incarnation: works.Incarnation}); err == nil && done {
					_, _, _ = m.Flushed(ctx, &taskqueue.StepFlushed{Trainer: works.Ordinal, Incarnation: works.Incarnation, Generation: p.Generation, Step: p.Round})
				}
				pause(ctx, 10*time.Millisecond)
			}
		}()
		servers.mu.Lock()
		servers.absent = false // the first cut is due immediately
		servers.mu.Unlock()
		time.Sleep(2*beginTimeout + statesRetry)
		s := m.config.Servers.Checkpoint()
		if withTask {
			if !strings.Contains(s.Failure, "waited for hangs: if") {
				t.Errorf("hung trainer: expected its name in the failure, found %q", s.Failure)
			}
			return
		}
		if s.Set != 1 || s.Failure != "" {
			t.Errorf("first cut: expected its set, found %+v", s)
		}
		var live []uint64
		if err := m.current.Load().Read(ctx, func(q *taskqueue.Queue) { _, live = q.Sessions() }); err != nil || !slices.Equal(live, []uint64{works.Incarnation}) {
			t.Errorf("sessions: found %v, %v, expected only %d", live, err, works.Incarnation)
		}
		if !servers.overAtBegin(hangs.Incarnation) || servers.overAtBegin(works.Incarnation) {
			t.Error("expected the ended session at the parameter servers before the cut")
		}
	})
}

// During a cut no step completes. A trainer that waits for a step is answered immediately, so that it can flush the
// cut.
func TestStagingTrainersFlushACut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		shards := &cutting{store: store, abouts: map[uint64]pscontrol.About{}, versions: map[uint64]uint64{}}
		config := Config{Sync: true, Queue: taskqueue.Options{Cuts: true, ExplicitCommit: true, SessionTTL: 20 * time.Second}}
		servers := &retiringTogether{cutTogether: cutTogether{shards}, absent: true}
		m, stop, ended := leads(t, store, config, servers, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: time.Minute}, CheckpointKeep: 1})
		defer func() {
			stop()
			<-ended
		}()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		register(t, m, 4)
		staged := func(w *worker) (included bool, took time.Duration) {
			began := time.Now()
			_, included, err := m.Staged(ctx, w.Ordinal, w.Incarnation, 0, 5, 0)
			if err != nil {
				t.Error(err)
			}
			return included, time.Since(began)
		}
		var crew []*worker
		for _, id := range []string{"a", "b"} {
			w := joins(t, m, id)
			if _, _, err := m.LastStep(ctx, &taskqueue.LastStep{Trainer: w.Ordinal, Incarnation: w.Incarnation, Epoch: 1}); err != nil {
				t.Fatal(err)
			}
			request := &taskqueue.Request{Trainer: w.Ordinal, Incarnation: w.Incarnation, Seq: 1, Ack: 1, Want: true, Epoch: 1}
			if reply, err := m.Next(ctx, request); err != nil || reply.Assignment == nil {
				t.Fatalf("expected a task, got %+v, %v", reply, err)
			}
			w.sendHeartbeats(ctx, false)
			crew = append(crew, w)
		}
		var waits sync.WaitGroup
		for _, w := range crew {
			waits.Go(func() {
				p, done, err := m.CutWatch(ctx, &taskqueue.CutWatch{Trainer: w.Ordinal, Incarnation: w.Incarnation})
				for ; err == nil && !done; p, done, err = m.CutWatch(ctx, &taskqueue.CutWatch{Trainer: w.Ordinal, Incarnation: w.Incarnation}) {
				}
				included, took := staged(w)
				if included || took > time.Second || err != nil {
					t.Errorf("staged in a cut: included %t after %v, %v; expected an immediate answer without a step", included, took, err)
				}
				if _, _, err := m.Flushed(ctx, &taskqueue.StepFlushed{Trainer: w.Ordinal, Incarnation: w.Incarnation, Generation: p.Generation, Step: p.Round}); err != nil {
					t.Error(err)
				}
				if included, took := staged(w); !included || took > time.Second {
					t.Errorf("after the cut: included %t after %v, expected the step", included, took)
				}
			})
		}
		servers.mu.Lock()
		servers.absent = false // the first cut is due immediately
		servers.mu.Unlock()
		waits.Wait()
		if s := m.config.Servers.Checkpoint(); s.Failure != "" {
			t.Errorf("the cut failed: %q", s.Failure)
		}
	})
}
