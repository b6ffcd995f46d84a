package master

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"trainmaster/master/committer"
	"trainmaster/master/pscontrol"
	"trainmaster/taskqueue"
)

// about reports whether got is the wanted time, plus at most a tick and a few commits. The job clock counts whole milliseconds.
func about(got, want time.Duration) bool {
	return got >= want-time.Millisecond && got < want+500*time.Millisecond
}

func overview(t *testing.T, m *Master) taskqueue.Overview {
	t.Helper()
	v, err := m.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// F9: a slow store causes no timeout, and trainers that wait for an answer are not lost.
func TestStalledStoreCausesNoTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, _, _ := leads(t, store, Config{Queue: taskqueue.Options{FirstTimeout: 12 * time.Second, SessionTTL: 11 * time.Second}}, nil)
		register(t, m, 10)
		a := joins(t, m, "a")
		if !a.next() {
			t.Fatal("expected a task")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a.sendHeartbeats(ctx, false)
		before := overview(t, m).Clock

		store.set(10*time.Minute, nil)
		began := time.Now()
		b := joins(t, m, "b") // waits for the store
		if stalled := time.Since(began); stalled < 10*time.Minute {
			t.Fatalf("store: expected a stall, found %v", stalled)
		}
		store.set(time.Millisecond, nil)

		v := overview(t, m)
		if went := v.Clock.Sub(before); went > committer.ClockLead+time.Second {
			t.Errorf("job clock: advanced by %v in a stall of ten minutes, expected at most %v", went, committer.ClockLead)
		}
		if len(v.Trainers) != 2 || v.Sets[0].Pending != 1 {
			t.Errorf("after the stall: found %d trainers and %d pending tasks, expected 2 and 1", len(v.Trainers), v.Sets[0].Pending)
		}
		if !a.next() || overview(t, m).Sets[0].Done != 1 {
			t.Error("task held during the stall: expected its finish to count")
		}
		_ = b
	})
}

// The grace of a lost connection does not expire while the request of the returned trainer waits for the store.
// Requests that arrive before a tick are applied before it.
func TestReturnDuringStallPrecedesTimeouts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, _, _ := leads(t, store, Config{}, nil)
		register(t, m, 10)
		a := joins(t, m, "a")
		if !a.next() {
			t.Fatal("expected a task")
		}
		m.Disconnected(taskqueue.Disconnected{Trainer: a.Ordinal, Incarnation: a.Incarnation}) // five seconds of grace
		store.set(time.Minute, nil)
		go func() { _, _ = m.Join(t.Context(), "b", "") }() // a commit of one minute
		time.Sleep(time.Second)
		if _, err := m.Heartbeat(t.Context(), &taskqueue.Heartbeat{Trainer: a.Ordinal, Incarnation: a.Incarnation}); err != nil {
			t.Fatalf("trainer that returned within a second: got %v", err)
		}
		store.set(time.Millisecond, nil)
		time.Sleep(2 * time.Second)
		if v := overview(t, m); v.Sets[0].Pending != 1 {
			t.Error("expected the trainer to keep its task")
		}
	})
}

// The end of a connection with many trainers is committed when the store is fast again, or accepts writes. Nothing else ends a session
// without heartbeats.
func TestEndOfAConnectionIsCommittedLate(t *testing.T) {
	for name, test := range map[string]struct {
		takes  time.Duration
		refuse error
	}{"slow": {20 * time.Second, nil}, "full": {time.Millisecond, taskqueue.ErrStoreFull}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const trainers = 200
				store := newMemory()
				m, stop, _ := leads(t, store, Config{}, nil)
				register(t, m, trainers)
				var gone []taskqueue.Disconnected
				for i := range trainers {
					r, err := m.PlainAsk(t.Context(), &taskqueue.PlainAsk{Connection: fmt.Sprint("1:", i), Want: true})
					if err != nil || r.Assignment == nil {
						t.Fatal(r, err)
					}
					gone = append(gone, taskqueue.Disconnected{Trainer: r.Ordinal, Incarnation: r.Incarnation})
				}
				store.set(test.takes, test.refuse)
				committed := make(chan struct{})
				go func() { m.Disconnected(gone...); close(committed) }()
				time.Sleep(time.Minute) // virtual time
				store.set(time.Millisecond, nil)
				<-committed
				if v := overview(t, m); len(v.Trainers) != 0 || v.Sets[0].Pending != 0 {
					t.Errorf("expected no sessions and no dispatched tasks, found %d and %d", len(v.Trainers), v.Sets[0].Pending)
				}
				r, err := m.PlainAsk(t.Context(), &taskqueue.PlainAsk{Connection: "1:last", Want: true})
				if err != nil || r.Assignment == nil {
					t.Fatal(r, err)
				}
				store.set(time.Millisecond, taskqueue.ErrStoreFull)
				ended := make(chan error, 1)
				go func() {
					m.Disconnected(taskqueue.Disconnected{Trainer: r.Ordinal, Incarnation: r.Incarnation})
					ended <- nil
				}()
				time.Sleep(time.Minute) // virtual time
				stop()
				within(t, "report of a connection after the term", time.Minute, ended)
			})
		})
	}
}

// A master leads with a store that refuses writes. Callers receive the error, and the job continues once the store
// has room.
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
			t.Errorf("with a full store: got %v", err)
		}
		next.set(time.Millisecond, nil)
		if !joins(t, m, "a").next() {
			t.Error("with room in the store: expected a task")
		}
	})
}

// A trainer can see the announcement before the leader receives the result of the announcement. The leader answers
// its request afterwards.
func TestRequestsDuringAnnouncementAreAnswered(t *testing.T) {
	for _, announced := range []error{nil, errors.New("etcd is away")} {
		bubble(t, func(t *testing.T) {
			store := newMemory()
			store.announcing, store.unannounced = 5*time.Second, announced
			m, _, _ := starts(t, store, Config{}, nil)
			time.Sleep(time.Second)
			began := time.Now()
			if m.Leading() {
				t.Error("expected no leadership before the announcement")
			}
			_, err := m.Join(t.Context(), "a", "")
			if took := time.Since(began); took < 3*time.Second || took > 5*time.Second {
				t.Errorf("announcement with error %v: answer after %v", announced, took)
			}
			if (err == nil) != (announced == nil) || err != nil && !errors.Is(err, ErrNotLeader) {
				t.Errorf("announcement with error %v: got %v", announced, err)
			}
		})
	}
}

// If the lock is lost during the announcement, callers receive an error.
func TestLockIsLostWhileATermIsAnnounced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		store.announcing = time.Hour
		m, _, _ := starts(t, store, Config{}, nil)
		time.Sleep(time.Second)
		time.AfterFunc(time.Second, func() { close(store.lost) })
		began := time.Now()
		if _, err := m.Join(t.Context(), "a", ""); !errors.Is(err, ErrNotLeader) || !about(time.Since(began), time.Second) {
			t.Errorf("after %v: got %v", time.Since(began), err)
		}
	})
}

// Timeouts are applied after waiting requests. If a write is just below the limit for slow writes, a grace does not
// expire for a trainer that has returned.
func TestTimeoutsFollowWaitingRequests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		term := drives(t, newMemory(), Config{Queue: taskqueue.Options{Grace: committer.SlowStore / 2}})
		joining := term.put(&taskqueue.Join{ID: "a"})
		term.round(false)
		a, _, _, _ := joining.Answer()
		term.put(&taskqueue.Disconnected{Trainer: a.Ordinal, Incarnation: a.Incarnation})
		term.round(false)
		beat := term.put(&taskqueue.Heartbeat{Trainer: a.Ordinal, Incarnation: a.Incarnation})
		time.Sleep(committer.SlowStore)
		term.round(true)
		if answer, _, done, err := beat.Answer(); err != nil || !done || answer.Kind == taskqueue.AnswerRejoin {
			t.Errorf("trainer that returned in time: got %+v, %v", answer, err)
		}
	})
}

// The session TTL is shorter than the lead of the job clock over the last commit. The time of an announcement, and
// the time of a refused commit, do not count as silence of a trainer.
func TestShortSessionsSurviveSlowStore(t *testing.T) {
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
				t.Errorf("found %d sessions one second after the announcement", n)
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
			for i := range committer.MaxBatchKeys { // above the size of a transaction: the tick is in the second
				term.put(&taskqueue.Join{ID: fmt.Sprintf("b%d", i)})
			}
			store.set(8*time.Second, errors.New("no quorum"))
			time.AfterFunc(time.Second, func() { store.set(time.Millisecond, nil) }) // for the second transaction
			term.round(true)
			beat := term.put(&taskqueue.Heartbeat{Trainer: a.Ordinal, Incarnation: a.Incarnation}) // arrived during the commit
			term.round(false)
			if answer, _, done, err := beat.Answer(); err != nil || !done || answer.Kind == taskqueue.AnswerRejoin {
				t.Errorf("heartbeat during the commit: got %+v, %v", answer, err)
			}
		})
	})
}

// While a session or task is live, the job clock is stored at least every ten seconds. An idle master writes nothing.
func TestJobClockIsStoredWhileTrainersAreLive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, _, _ := leads(t, store, Config{}, nil)
		register(t, m, 10)
		before := len(store.written())
		time.Sleep(time.Hour)
		if n := len(store.written()) - before; n != 0 {
			t.Errorf("idle master: found %d writes in an hour", n)
		}
		a := joins(t, m, "a")
		if !a.next() {
			t.Fatal("expected a task")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a.sendHeartbeats(ctx, true)
		clock, began := overview(t, m).Clock, time.Now()
		time.Sleep(5 * time.Minute)
		times := store.written()
		for i := len(times) - 1; i > 0 && times[i].After(began); i-- {
			if pause := times[i].Sub(times[i-1]); pause > committer.CommitEvery+time.Second && times[i-1].After(began) {
				t.Errorf("expected a write every ten seconds, found a pause of %v", pause)
			}
		}
		if went := overview(t, m).Clock.Sub(clock); went < 5*time.Minute-time.Second || went > 5*time.Minute+time.Second {
			t.Errorf("job clock: advanced by %v in five minutes", went)
		}
	})
}

// A deadline is a time of the job clock. The next term continues from the stored clock, at any time of day, and gives
// each task a whole timeout again, within the hard deadline.
func TestJobClockContinuesInNextTerm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		config := Config{Queue: taskqueue.Options{FirstTimeout: 20 * time.Second, SessionTTL: time.Hour}}
		store := newMemory()
		m, stop, _ := leads(t, store, config, nil)
		register(t, m, 1)
		a := joins(t, m, "a")
		if !a.next() {
			t.Fatal("expected a task")
		}
		time.Sleep(15 * time.Second)
		before := overview(t, m).Clock
		stop()
		time.Sleep(24 * time.Hour) // without a leader
		next, _, _ := leads(t, store.copied(), config, nil)
		if clock := overview(t, next).Clock; clock > before.Add(time.Second) || clock < before.Add(-committer.CommitEvery-time.Second) {
			t.Errorf("job clock without a leader: expected %d, found %d", before, clock)
		}
		b := joins(t, next, "b")
		began := time.Now()
		for !b.next() {
		}
		if waited := time.Since(began); !about(waited, 20*time.Second) {
			t.Errorf("task of a silent trainer: redelivered after %v of the new term, expected 20s", waited)
		}
	})
}

// F27: heartbeats with progress extend the soft deadline up to the hard deadline. Heartbeats without progress extend
// no deadline.
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
					t.Fatal("expected a task")
				}
				began := time.Now()
				a.sendHeartbeats(ctx, tt.moving)
				b.sendHeartbeats(ctx, false)
				for !b.next() {
				}
				if waited := time.Since(began); !about(waited, tt.want) {
					t.Errorf("task: redelivered after %v, expected %v", waited, tt.want)
				}
			})
		})
	}
}

// A trainer without a task waits ten seconds for a task and is then asked to repeat its request.
func TestLongPollEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, _, _ := leads(t, newMemory(), Config{}, nil)
		a := joins(t, m, "a")
		began := time.Now()
		if a.next() {
			t.Error("expected no task")
		}
		if waited := time.Since(began); !about(waited, committer.LongPoll) {
			t.Errorf("wait: found %v, expected %v", waited, committer.LongPoll)
		}
	})
}

// The end of a long poll is an answer only of a master with a valid lease. A master that was paused past its lease,
// and whose first commit is refused, does not answer.
func TestLongPollEndsWithTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		term := drives(t, store, Config{})
		ask := func(event taskqueue.Event) *committer.Pending {
			e := term.put(event)
			term.round(false)
			return e
		}
		joined, _, _, err := ask(&taskqueue.Join{ID: "a"}).Answer()
		if err != nil {
			t.Fatal(err)
		}
		waits := ask(&taskqueue.Request{Trainer: joined.Ordinal, Incarnation: joined.Incarnation, Seq: 1, Ack: 1, Want: true})
		time.Sleep(2 * committer.LongPoll)
		store.doubt()
		store.set(time.Millisecond, errors.New("etcd is full"))
		term.round(true)
		if a, _, done, err := waits.Answer(); done && err == nil {
			t.Errorf("long poll: got %+v", a)
		}
	})
}

// A finished job waits until its trainers have received the end, at most for the linger time. For the saver of the
// model it waits as long as the saver renews its lease.
func TestFinishedJobLingers(t *testing.T) {
	tests := map[string]struct {
		leave  bool
		saving int // renewals of the save lease, every 30 s
		want   time.Duration
	}{
		"all trainers leave": {leave: true, want: 0},
		"a silent trainer":   {want: 30 * time.Second},
		"a saver":            {saving: 4, want: 90*time.Second + saveLease},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m, _, ended := leads(t, newMemory(), Config{Queue: taskqueue.Options{Passes: 1}}, nil)
				register(t, m, 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				a := joins(t, m, "a")
				a.sendHeartbeats(ctx, false)
				if !a.next() || a.next() {
					t.Fatal("expected one task, then the end")
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
						t.Fatalf("election: got %v", err)
					}
				}
				if err := <-ended; err != nil {
					t.Errorf("end of the master: got %v", err)
				}
				if waited := time.Since(began); !about(waited, tt.want) {
					t.Errorf("end of the master: after %v, expected %v", waited, tt.want)
				}
			})
		})
	}
}

// stepRecorder implements parameter servers that record the steps.
type stepRecorder struct {
	pscontrol.None // the rest
	block          bool

	mu       sync.Mutex
	recorded []taskqueue.Step
}

// steps returns the recorded steps.
func (s *stepRecorder) steps() []taskqueue.Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.recorded)
}

func (s *stepRecorder) CommitStep(ctx context.Context, step taskqueue.Step) error {
	s.mu.Lock()
	s.recorded = append(s.recorded, step)
	s.mu.Unlock()
	if s.block {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// States returns a server without checkpoints: cuts contain the data alone.
func (s *stepRecorder) States(context.Context) ([]pscontrol.ServerState, error) {
	return []pscontrol.ServerState{{Present: true, Ready: true, Epoch: 1}}, nil
}

// synchronous returns the configuration of a synchronous job.
func synchronous(c Config) Config {
	c.Sync, c.Queue.Cuts, c.Queue.ExplicitCommit = true, true, true
	return c
}

// train runs tasks with the given numbers of batches in synchronous steps until the job ends.
func (w *worker) train(ctx context.Context, lengths []int) {
	version := uint64(0)
	for !w.finished && ctx.Err() == nil && !w.t.Failed() {
		if !w.next() { // a cut waits for this trainer
			pause(ctx, time.Millisecond)
			continue
		}
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

// Three trainers run four tasks of unequal size with a pass barrier. A step does not wait for trainers without a
// task, and no timeout is needed.
func TestPassBarrierDoesNotBlockSteps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var shards stepRecorder
		m, _, ended := leads(t, newMemory(), synchronous(Config{Queue: taskqueue.Options{Passes: 3}}), &shards)
		register(t, m, 4)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		done := make(chan struct{})
		lengths := []int{9, 1, 4, 2}
		for _, id := range []string{"a", "b", "c"} {
			w := memberOf(t, m, id)
			w.flushes(ctx, 0)
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
			t.Errorf("job: took %v, expected no wait for a timeout", took)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		batches, last := 0, uint64(0)
		for _, s := range shards.steps() {
			if s.Version == last {
				continue // a repeated step
			}
			if s.Version != last+1 {
				t.Fatalf("step %d: sent after step %d", s.Version, last)
			}
			last = s.Version
			batches += len(s.Contributors)
		}
		if want := 3 * (9 + 1 + 4 + 2); batches != want {
			t.Errorf("gradients in steps: found %d, expected %d", batches, want)
		}
	})
}

// F57: a step waits for a trainer that died until its session ends. The step then consists of the remaining trainers.
func TestLostTrainerShrinksTheStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var shards stepRecorder
		m, _, _ := leads(t, newMemory(), synchronous(Config{}), &shards)
		register(t, m, 10)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a, b := memberOf(t, m, "a"), memberOf(t, m, "b")
		if !a.next() || !b.next() {
			t.Fatal("expected two tasks")
		}
		a.sendHeartbeats(ctx, true)
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
				t.Fatal("step: expected the contributor that staged")
			}
		}
		if waited := time.Since(began); waited < 14*time.Second || waited > 16*time.Second {
			t.Errorf("step: committed after %v, expected the session TTL of 15s", waited)
		}
		if _, _, err := m.Staged(ctx, b.Ordinal, b.Incarnation, 0, 5, 0); !errors.Is(err, ErrRejoin) {
			t.Errorf("stage of the lost trainer: got %v", err)
		}
		if c, included, err := m.Staged(ctx, a.Ordinal, a.Incarnation, 0, 5, 0); err != nil || c != 1 || !included {
			t.Errorf("repeated stage: got %d, %v, %v", c, included, err)
		}
	})
}

// A trainer reports that shards refused its gradient as late, at the version that is the last version of the master.
// The trainer has staged nothing, so no step counts it.
func TestRefusedStageDoesNotCount(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var shards stepRecorder
		m, _, _ := leads(t, newMemory(), synchronous(Config{}), &shards)
		register(t, m, 10)
		a, b := memberOf(t, m, "a"), memberOf(t, m, "b")
		if !a.next() || !b.next() {
			t.Fatal("expected two tasks")
		}
		var group errgroup.Group
		group.Go(func() error {
			for {
				if c, included, err := m.Staged(t.Context(), a.Ordinal, a.Incarnation, 0, 5, 0); err != nil || included {
					return err
				} else if c > 0 {
					return errors.New("expected no step without trainer a")
				}
			}
		})
		if c, included, err := m.Staged(t.Context(), b.Ordinal, b.Incarnation, 0, 0, 0); err != nil || c != 0 || included {
			t.Errorf("stage refused by shards: got %d, %v, %v", c, included, err)
		}
		if c, included, err := m.Staged(t.Context(), b.Ordinal, b.Incarnation, 0, 3, 0); err != nil || c != 1 || !included {
			t.Errorf("stage: got %d, %v, %v", c, included, err)
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// The next leader sends the last step to the shards again. Shards that do not answer delay no other.
func TestLastStepIsSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		store.keys[taskqueue.StepKey] = taskqueue.Step{Version: 7, Epoch: 1, Contributors: []taskqueue.Contributor{{Ordinal: 1, Incarnation: 1 << 16, Records: 3}}}.Encode()
		shards := &stepRecorder{block: true}
		m, _, _ := leads(t, store, synchronous(Config{}), shards)
		register(t, m, 10)
		a := memberOf(t, m, "a")
		if !a.next() {
			t.Fatal("expected a task")
		}
		a.sendHeartbeats(t.Context(), true)
		began := time.Now()
		for v := uint64(7); v < 12; v++ {
			if c, included, err := m.Staged(t.Context(), a.Ordinal, a.Incarnation, v, 5, 0); err != nil || c != v+1 || !included {
				t.Fatalf("version %d: got %d, %v, %v", v, c, included, err)
			}
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("silent shards: expected no delay of steps, found %v", took)
		}
		time.Sleep(2*stepTimeout + stepRetry)
		var versions []uint64
		for _, s := range shards.steps() {
			versions = append(versions, s.Version)
		}
		if !slices.Equal(versions[:2], []uint64{7, 12}) {
			t.Errorf("sent steps: found %v, expected the stored step 7 and the newest", versions)
		}
		if _, _, err := m.Staged(t.Context(), a.Ordinal, a.Incarnation, 3, 5, 0); err != nil {
			t.Errorf("stage of an old version: got %v", err)
		}
	})
}

// etcd refuses the commit of a synchronous step. The next batch has only a request of a caller that left, and completes the step: the
// commit has the time of its batch.
func TestCommitWithoutAnAppliedEventAdvancesTheJobClock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		term := drives(t, store, synchronous(Config{}))
		joining := term.put(&taskqueue.Join{ID: "a"})
		table, digest := tableOfParts(t, 1), [32]byte{1}
		term.put(&taskqueue.Report{Digest: digest, Table: table})
		term.round(false)
		a, _, _, _ := joining.Answer()
		asking := term.put(&taskqueue.Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 1, Want: true, Epoch: a.Epoch})
		term.round(false)
		if task, _, _, err := asking.Answer(); err != nil || task.Kind != taskqueue.AnswerTask {
			t.Fatalf("expected a task, found %+v, %v", task, err)
		}
		store.set(time.Millisecond, taskqueue.ErrStoreFull)
		by := taskqueue.Contributor{Ordinal: a.Ordinal, Incarnation: a.Incarnation, Records: 5}
		term.put(&taskqueue.StageGradients{By: by, Epoch: a.Epoch})
		term.round(false)
		store.set(time.Millisecond, nil)
		before := len(store.written())
		time.Sleep(500 * time.Millisecond) // virtual time
		left, leave := context.WithCancel(t.Context())
		leave()
		if _, err := term.Put(left, &taskqueue.Heartbeat{Trainer: a.Ordinal, Incarnation: a.Incarnation}); err != nil {
			t.Fatal(err)
		}
		term.round(false)
		if n := len(store.written()) - before; n != 1 {
			t.Fatalf("expected the commit of the step, found %d commits", n)
		}
		stored, _, _ := store.ReadState(t.Context())
		var snapshot taskqueue.Snapshot
		if err := store.Decode(stored, &snapshot, committer.MaxStoredState); err != nil || snapshot.Clock < 500 {
			t.Errorf("stored job clock: expected at least 500 ms, found %d, %v", snapshot.Clock, err)
		}
	})
}
