package master

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"trainmaster/master/decide"
	"trainmaster/taskqueue"
)

// about reports whether a time is what was wanted, within the master's tick and some
// commits.
func about(got, want time.Duration) bool { return got >= want && got < want+500*time.Millisecond }

func overview(t *testing.T, m *Master) taskqueue.Overview {
	t.Helper()
	v, err := m.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// F9: however long the store takes, nobody's time is up because of it, and nobody who is
// waiting for an answer is taken for lost.
func TestNothingTimesOutWhileTheStoreStalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, _, _ := leads(t, store, Config{Queue: taskqueue.Options{FirstTimeout: 12 * time.Second, SessionTTL: 11 * time.Second}}, nil)
		register(t, m, 10)
		a := joins(t, m, "a")
		if !a.next() {
			t.Fatal("no task")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a.beats(ctx, false)
		before := overview(t, m).Clock

		store.set(10*time.Minute, nil)
		began := time.Now()
		b := joins(t, m, "b") // waits for the store
		if stalled := time.Since(began); stalled < 10*time.Minute {
			t.Fatalf("the store did not stall: %v", stalled)
		}
		store.set(time.Millisecond, nil)

		v := overview(t, m)
		if went := v.Clock.Sub(before); went > decide.ClockLead+time.Second {
			t.Errorf("the job clock went %v during a stall of ten minutes, want %v at most", went, decide.ClockLead)
		}
		if len(v.Trainers) != 2 || v.Sets[0].Pending != 1 {
			t.Errorf("%d trainers and %d pending tasks after the stall, want 2 and 1", len(v.Trainers), v.Sets[0].Pending)
		}
		if !a.next() || overview(t, m).Sets[0].Done != 1 {
			t.Error("the task that was held during the stall was not counted")
		}
		_ = b
	})
}

// The grace of a lost connection does not run out while the one who came back waits for the
// store: who spoke before a tick is heard before it.
func TestWhoComesBackDuringAStallIsHeardFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, _, _ := leads(t, store, Config{}, nil)
		register(t, m, 10)
		a := joins(t, m, "a")
		if !a.next() {
			t.Fatal("no task")
		}
		if err := m.Disconnected(t.Context(), a.Ordinal, a.Incarnation); err != nil { // five seconds of grace
			t.Fatal(err)
		}
		store.set(time.Minute, nil)
		go func() { _, _ = m.Join(t.Context(), "b", "") }() // a commit that takes a minute
		time.Sleep(time.Second)
		if _, err := m.Heartbeat(t.Context(), &taskqueue.Heartbeat{Trainer: a.Ordinal, Incarnation: a.Incarnation}); err != nil {
			t.Fatalf("it was back within a second, but: %v", err)
		}
		store.set(time.Millisecond, nil)
		time.Sleep(2 * time.Second)
		if v := overview(t, m); v.Sets[0].Pending != 1 {
			t.Error("its task was taken back")
		}
	})
}

// A store that takes no writes is no reason not to lead: who asks is told, and when there is room again all goes on.
func TestTermThatBeginsWithAFullStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, _ := leads(t, store, Config{}, nil)
		register(t, m, 3)
		stop()
		next := store.copied()
		next.set(time.Millisecond, taskqueue.ErrStoreFull)
		m, _, _ = leads(t, next, Config{}, nil)
		if _, err := m.Join(t.Context(), "a", ""); !errors.Is(err, ErrNotStored) {
			t.Errorf("while it is full: %v", err)
		}
		next.set(time.Millisecond, nil)
		if !joins(t, m, "a").next() {
			t.Error("no task, after there was room again")
		}
	})
}

// Who heard of a leader may ask it before it knows that it was heard of: it answers when it can.
func TestWhoComesWhileATermIsAnnounced(t *testing.T) {
	for _, announced := range []error{nil, errors.New("etcd is away")} {
		bubble(t, func(t *testing.T) {
			store := newMemory()
			store.announcing, store.unannounced = 5*time.Second, announced
			m, _, _ := starts(t, store, Config{}, nil)
			time.Sleep(time.Second)
			began := time.Now()
			if m.Leading() {
				t.Error("it leads before it is announced")
			}
			_, err := m.Join(t.Context(), "a", "")
			if took := time.Since(began); took < 3*time.Second || took > 5*time.Second {
				t.Errorf("announced with %v: an answer after %v", announced, took)
			}
			if (err == nil) != (announced == nil) || err != nil && !errors.Is(err, ErrNotLeader) {
				t.Errorf("announced with %v: %v", announced, err)
			}
		})
	}
}

// A lock that is lost while the term is announced keeps nobody waiting.
func TestLockIsLostWhileATermIsAnnounced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		store.announcing = time.Hour
		m, _, _ := starts(t, store, Config{}, nil)
		time.Sleep(time.Second)
		time.AfterFunc(time.Second, func() { close(store.lost) })
		began := time.Now()
		if _, err := m.Join(t.Context(), "a", ""); !errors.Is(err, ErrNotLeader) || !about(time.Since(began), time.Second) {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// Time passes after all that waited was heard: also while the store is not so slow that its time does not count, a grace
// does not run out for one who is back.
func TestTimePassesAfterAllThatWaited(t *testing.T) {
	bubble(t, func(t *testing.T) {
		term := drives(t, newMemory(), Config{Queue: taskqueue.Options{Grace: slowStore / 2}})
		joining := term.put(&taskqueue.Join{ID: "a"})
		term.round(false)
		a, _, _, _ := joining.Answer()
		term.put(&taskqueue.Disconnected{Trainer: a.Ordinal, Incarnation: a.Incarnation})
		term.round(false)
		beat := term.put(&taskqueue.Heartbeat{Trainer: a.Ordinal, Incarnation: a.Incarnation})
		time.Sleep(slowStore)
		term.round(true)
		if answer, _, done, err := beat.Answer(); err != nil || !done || answer.Kind == taskqueue.AnswerRejoin {
			t.Errorf("it was back in time, and is told %+v, %v", answer, err)
		}
	})
}

// A session shorter than what the job clock may run ahead of the last commit: the time that
// a term takes to begin, and that the store takes to refuse, is nobody's silence.
func TestShortSessionsOutliveASlowStore(t *testing.T) {
	config := Config{Queue: taskqueue.Options{SessionTTL: 6 * time.Second}}
	t.Run("while a term is announced", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			store := newMemory()
			m, stop, _ := leads(t, store, config, nil)
			joins(t, m, "a")
			stop()
			next := store.copied()
			next.announcing = 9 * time.Second
			m, _, _ = leads(t, next, config, nil)
			time.Sleep(time.Second)
			if n := len(overview(t, m).Trainers); n != 1 {
				t.Errorf("%d trainers have a session, a second after there was a leader to talk to", n)
			}
		})
	})
	t.Run("while a commit is refused", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			store := newMemory()
			term := drives(t, store, config)
			joining := term.put(&taskqueue.Join{ID: "a"})
			term.round(false)
			a, _, _, _ := joining.Answer()
			for i := range maxBatchKeys { // more than a transaction takes: the tick is in the second one
				term.put(&taskqueue.Join{ID: fmt.Sprintf("b%d", i)})
			}
			store.set(8*time.Second, errors.New("no quorum"))
			time.AfterFunc(time.Second, func() { store.set(time.Millisecond, nil) }) // for the second one
			term.round(true)
			beat := term.put(&taskqueue.Heartbeat{Trainer: a.Ordinal, Incarnation: a.Incarnation}) // it came meanwhile
			term.round(false)
			if answer, _, done, err := beat.Answer(); err != nil || !done || answer.Kind == taskqueue.AnswerRejoin {
				t.Errorf("it beat while the commit was under way, and is told %+v, %v", answer, err)
			}
		})
	})
}

// While anything is live the job clock is stored every ten seconds at least, so that it goes
// on; while nothing is, an idle master writes nothing.
func TestTheClockIsStoredWhileAnythingIsLive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, _, _ := leads(t, store, Config{}, nil)
		register(t, m, 10)
		before := len(store.written())
		time.Sleep(time.Hour)
		if n := len(store.written()) - before; n != 0 {
			t.Errorf("an idle master wrote %d times in an hour", n)
		}
		a := joins(t, m, "a")
		if !a.next() {
			t.Fatal("no task")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a.beats(ctx, true)
		clock, began := overview(t, m).Clock, time.Now()
		time.Sleep(5 * time.Minute)
		times := store.written()
		for i := len(times) - 1; i > 0 && times[i].After(began); i-- {
			if pause := times[i].Sub(times[i-1]); pause > commitEvery+time.Second && times[i-1].After(began) {
				t.Errorf("nothing was written for %v", pause)
			}
		}
		if went := overview(t, m).Clock.Sub(clock); went < 5*time.Minute-time.Second || went > 5*time.Minute+time.Second {
			t.Errorf("the job clock went %v in five minutes", went)
		}
	})
}

// A deadline is a time of the job clock: the next term goes on from the stored one, whatever
// the hour is, and gives a whole time-out anew, within the hard deadline.
func TestTheClockGoesOnInTheNextTerm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		config := Config{Queue: taskqueue.Options{FirstTimeout: 20 * time.Second, SessionTTL: time.Hour}}
		store := newMemory()
		m, stop, _ := leads(t, store, config, nil)
		register(t, m, 1)
		a := joins(t, m, "a")
		if !a.next() {
			t.Fatal("no task")
		}
		time.Sleep(15 * time.Second)
		before := overview(t, m).Clock
		stop()
		time.Sleep(24 * time.Hour) // nobody leads
		next, _, _ := leads(t, store.copied(), config, nil)
		if clock := overview(t, next).Clock; clock > before.Add(time.Second) || clock < before.Add(-commitEvery-time.Second) {
			t.Errorf("the job clock went from %d to %d while nobody led", before, clock)
		}
		b := joins(t, next, "b")
		began := time.Now()
		for !b.next() {
		}
		if waited := time.Since(began); !about(waited, 20*time.Second) {
			t.Errorf("the task of a silent trainer went to another one after %v of the new term, want 20s", waited)
		}
	})
}

// F27: heartbeats with progress extend the soft deadline, but never beyond the hard one;
// heartbeats without progress extend nothing.
func TestProgressExtendsTheDeadline(t *testing.T) {
	for name, tt := range map[string]struct {
		moving bool
		want   time.Duration
	}{"no progress": {false, 20 * time.Second}, "progress": {true, 200 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m, _, _ := leads(t, newMemory(), Config{Queue: taskqueue.Options{FirstTimeout: 20 * time.Second}}, nil)
				register(t, m, 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				a, b := joins(t, m, "a"), joins(t, m, "b")
				if !a.next() {
					t.Fatal("no task")
				}
				began := time.Now()
				a.beats(ctx, tt.moving)
				b.beats(ctx, false)
				for !b.next() {
				}
				if waited := time.Since(began); !about(waited, tt.want) {
					t.Errorf("it was given to another one after %v, want %v", waited, tt.want)
				}
			})
		})
	}
}

// Who holds nothing waits ten seconds for a task and is told to ask again.
func TestLongPollEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, _, _ := leads(t, newMemory(), Config{}, nil)
		a := joins(t, m, "a")
		began := time.Now()
		if a.next() {
			t.Error("a task came from nowhere")
		}
		if waited := time.Since(began); !about(waited, longPoll) {
			t.Errorf("waited %v, want %v", waited, longPoll)
		}
	})
}

// Who waited long enough is told to ask again only by a master that may still answer: not by one that was paused past its
// lease, and whose first commit is refused.
func TestLongPollEndsWithTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		term := drives(t, store, Config{})
		ask := func(event taskqueue.Event) *Errand {
			e := term.put(event)
			term.round(false)
			return e
		}
		joined, _, _, err := ask(&taskqueue.Join{ID: "a"}).Answer()
		if err != nil {
			t.Fatal(err)
		}
		waits := ask(&taskqueue.Request{Trainer: joined.Ordinal, Incarnation: joined.Incarnation, Seq: 1, Ack: 1, Want: true})
		time.Sleep(2 * longPoll)
		store.doubt()
		store.set(time.Millisecond, errors.New("etcd is full"))
		term.round(true)
		if a, _, done, err := waits.Answer(); done && err == nil {
			t.Errorf("it is answered %+v", a)
		}
	})
}

// A finished job waits for its trainers to hear of it, the linger at most; for the one that
// saves the model as long as it says that it does.
func TestFinishedJobLingers(t *testing.T) {
	tests := map[string]struct {
		leave  bool
		saving int // how often it says so, every 30 s
		want   time.Duration
	}{
		"until all have left": {leave: true, want: 0},
		"the linger at most":  {want: 30 * time.Second},
		"for the saver":       {saving: 4, want: 90*time.Second + saveLease},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m, _, ended := leads(t, newMemory(), Config{Queue: taskqueue.Options{Passes: 1}}, nil)
				register(t, m, 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				a := joins(t, m, "a")
				a.beats(ctx, false)
				if !a.next() || a.next() {
					t.Fatal("expected one task, and the end")
				}
				began := time.Now()
				if tt.leave {
					if err := m.Leave(ctx, a.Ordinal, a.Incarnation); err != nil {
						t.Fatal(err)
					}
				}
				for i := range tt.saving {
					time.Sleep(time.Until(began.Add(time.Duration(i) * 30 * time.Second)))
					if elected, err := m.SaveModel(ctx, a.Ordinal, a.Incarnation); err != nil || !elected {
						t.Fatalf("not elected: %v", err)
					}
				}
				if err := <-ended; err != nil {
					t.Errorf("the master ended with %v", err)
				}
				if waited := time.Since(began); !about(waited, tt.want) {
					t.Errorf("the master ended after %v, want %v", waited, tt.want)
				}
			})
		})
	}
}

// told is what the parameter servers hear.
type told struct {
	None    // the rest
	block   bool
	version atomic.Uint64 // that they are at

	mu    sync.Mutex
	steps []taskqueue.Step
}

// heard returns the steps so far.
func (s *told) heard() []taskqueue.Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.steps)
}

func (s *told) CommitStep(ctx context.Context, step taskqueue.Step) (uint64, error) {
	if step.Version > 0 { // else it was only asked
		s.mu.Lock()
		s.steps = append(s.steps, step)
		s.mu.Unlock()
	}
	if s.block {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return s.version.Load(), nil
}

func (s *told) SetAt([]byte) (SetAt, error)                   { return SetAt{}, ErrNothingToCut }
func (s *told) Discard(context.Context, uint64, []byte) error { return nil }
func (s *told) Version(context.Context) (uint64, error)       { return s.version.Load(), nil }

func (s *told) Begin(context.Context, uint64, uint32, func(uint64) uint64) (Cut, error) {
	return nil, ErrNothingToCut
}

// train works through tasks of so many batches as lengths says, in synchronous steps, until
// the job is over.
func (w *worker) train(ctx context.Context, lengths []int) {
	version := uint64(0)
	for w.next() {
		for range lengths[w.held.Position] {
			for {
				committed, included, err := w.m.Staged(ctx, w.Ordinal, w.Incarnation, version, 10, 0)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					w.t.Errorf("trainer %d at version %d: %v", w.Ordinal, version, err)
					return
				}
				version = committed
				if included {
					break
				}
			}
		}
	}
}

// PROTOCOLS.md 9: three trainers, four tasks of unequal size, a pass barrier: trainers
// without a task are not waited for, and no time-out is needed.
func TestPassBarrierAndStepsDoNotWaitForEachOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var shards told
		m, _, ended := leads(t, newMemory(), Config{Sync: true, Queue: taskqueue.Options{Passes: 3}}, &shards)
		register(t, m, 4)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		done := make(chan struct{})
		lengths := []int{9, 1, 4, 2}
		for _, id := range []string{"a", "b", "c"} {
			w := joins(t, m, id)
			go func() {
				w.train(ctx, lengths)
				if err := m.Leave(ctx, w.Ordinal, w.Incarnation); err != nil {
					t.Error(err)
				}
				done <- struct{}{}
			}()
		}
		for range 3 {
			<-done
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the job took %v: somebody waited for a time-out", took)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		batches, last := 0, uint64(0)
		for _, s := range shards.heard() {
			if s.Version == last {
				continue // told again
			}
			if s.Version != last+1 {
				t.Fatalf("step %d was told after step %d", s.Version, last)
			}
			last = s.Version
			batches += len(s.Contributors)
		}
		if want := 3 * (9 + 1 + 4 + 2); batches != want {
			t.Errorf("%d gradients are in the steps, want %d", batches, want)
		}
	})
}

// F57: a trainer that dies in a step is waited for until its session ends, then the step is
// that of the others.
func TestLostTrainerShrinksTheStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var shards told
		m, _, _ := leads(t, newMemory(), Config{Sync: true}, &shards)
		register(t, m, 10)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a, b := joins(t, m, "a"), joins(t, m, "b")
		if !a.next() || !b.next() {
			t.Fatal("no tasks")
		}
		a.beats(ctx, true)
		began := time.Now()
		for {
			committed, included, err := m.Staged(ctx, a.Ordinal, a.Incarnation, 0, 5, 0)
			if err != nil {
				t.Fatal(err)
			}
			if included {
				break
			}
			if committed != 0 {
				t.Fatal("a step without the only one that staged")
			}
		}
		if waited := time.Since(began); waited < 14*time.Second || waited > 16*time.Second {
			t.Errorf("the step was committed after %v, want the session's 15s", waited)
		}
		if _, _, err := m.Staged(ctx, b.Ordinal, b.Incarnation, 0, 5, 0); !errors.Is(err, ErrRejoin) {
			t.Errorf("the lost one stages and is told %v", err)
		}
		if c, included, err := m.Staged(ctx, a.Ordinal, a.Incarnation, 0, 5, 0); err != nil || c != 1 || !included {
			t.Errorf("the same question again: %d, %v, %v", c, included, err)
		}
	})
}

// Who reports that shards refused a gradient as late, of a version that is the last one here, has staged nothing: no step counts on it.
func TestRefusedStageDoesNotCount(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var shards told
		m, _, _ := leads(t, newMemory(), Config{Sync: true}, &shards)
		register(t, m, 10)
		a, b := joins(t, m, "a"), joins(t, m, "b")
		if !a.next() || !b.next() {
			t.Fatal("no tasks")
		}
		var group errgroup.Group
		group.Go(func() error {
			for {
				if c, included, err := m.Staged(t.Context(), a.Ordinal, a.Incarnation, 0, 5, 0); err != nil || included {
					return err
				} else if c > 0 {
					return errors.New("a step without a")
				}
			}
		})
		if c, included, err := m.Staged(t.Context(), b.Ordinal, b.Incarnation, 0, 0, 0); err != nil || c != 0 || included {
			t.Errorf("refused by shards: %d, %v, %v", c, included, err)
		}
		if c, included, err := m.Staged(t.Context(), b.Ordinal, b.Incarnation, 0, 3, 0); err != nil || c != 1 || !included {
			t.Errorf("staged: %d, %v, %v", c, included, err)
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// The next leader tells the shards of the last step again; shards that do not answer hold
// nobody up but themselves.
func TestShardsAreToldAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		store.keys[taskqueue.StepKey] = taskqueue.Step{Version: 7, Epoch: 1, Contributors: []taskqueue.Contributor{{Ordinal: 1, Incarnation: 1 << 16, Records: 3}}}.Encode()
		shards := &told{block: true}
		m, _, _ := leads(t, store, Config{Sync: true}, shards)
		register(t, m, 10)
		a := joins(t, m, "a")
		if !a.next() {
			t.Fatal("no task")
		}
		a.beats(t.Context(), true)
		began := time.Now()
		for v := uint64(7); v < 12; v++ {
			if c, included, err := m.Staged(t.Context(), a.Ordinal, a.Incarnation, v, 5, 0); err != nil || c != v+1 || !included {
				t.Fatalf("at version %d: %d, %v, %v", v, c, included, err)
			}
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("silent shards held the steps up for %v", took)
		}
		time.Sleep(2*stepTimeout + stepRetry)
		var versions []uint64
		for _, s := range shards.heard() {
			versions = append(versions, s.Version)
		}
		if !slices.Equal(versions[:2], []uint64{7, 12}) {
			t.Errorf("told of steps %v, want 7, which the leader found, and the newest since", versions)
		}
		if _, _, err := m.Staged(t.Context(), a.Ordinal, a.Incarnation, 3, 5, 0); err != nil {
			t.Errorf("a stage that is long past: %v", err)
		}
	})
}
