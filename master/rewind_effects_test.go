package master

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"trainmaster/master/committer"
	"trainmaster/master/pscontrol"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// rollingBack implements parameter servers that record their epochs.
type rollingBack struct {
	cutTogether
	mu         sync.Mutex
	absent     bool
	rolledBack uint32 // 0: the server has just started
	epochs     []uint32
}

func (s *rollingBack) States(context.Context) ([]pscontrol.ServerState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []pscontrol.ServerState{{Present: !s.absent, Ready: true, Epoch: s.rolledBack, KeepsCheckpoints: true}}, nil
}

func (s *rollingBack) Rollback(_ context.Context, _ uint64, epoch uint32, _, _ []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rolledBack, s.epochs = epoch, append(s.epochs, epoch)
	return nil
}

func (s *rollingBack) set(absent bool, rolledBack uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absent, s.rolledBack = absent, rolledBack
}

func (s *rollingBack) last() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rolledBack
}

var cutsEveryHour = Config{Queue: taskqueue.Options{Cuts: true, ExplicitCommit: true}}

var hourly = pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: time.Hour}, CheckpointKeep: 1}

func newRollingBack(store *memory) *rollingBack {
	return &rollingBack{cutTogether: cutTogether{&cutting{store: store, abouts: map[uint64]pscontrol.About{}, versions: map[uint64]uint64{}}}, rolledBack: 1}
}

// losesATask lets a trainer leave while it holds a task.
func losesATask(t *testing.T, m *Master) {
	t.Helper()
	register(t, m, 4)
	w := joins(t, m, "a")
	if _, _, err := m.LastStep(t.Context(), &taskqueue.LastStep{Trainer: w.Ordinal, Incarnation: w.Incarnation, Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	request := &taskqueue.Request{Trainer: w.Ordinal, Incarnation: w.Incarnation, Seq: 1, Ack: 1, Want: true, Epoch: 1}
	if reply, err := m.Next(t.Context(), request); err != nil || reply.Assignment == nil {
		t.Fatalf("expected a task, got %+v, %v", reply, err)
	}
	if err := m.Leave(t.Context(), w.Ordinal, w.Incarnation); err != nil {
		t.Fatal(err)
	}
}

// soon is far less than resendEvery, the interval at which the leader checks the servers.
const soon = resendEvery / 10

func TestLostTaskRollsTheJobBackAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		servers := newRollingBack(store)
		m, stop, ended := leads(t, store, cutsEveryHour, servers, hourly)
		defer func() { stop(); <-ended }()
		time.Sleep(soon) // after the first cut
		losesATask(t, m)
		time.Sleep(soon)
		if got := servers.last(); got != 2 {
			t.Errorf("servers are at epoch %d: expected 2", got)
		}
	})
}

func TestNextLeaderRollsTheJobBackFromOutstandingAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		servers := newRollingBack(store)
		servers.set(true, 1) // the first leader cannot roll back
		m, stop, ended := leads(t, store, cutsEveryHour, servers, hourly)
		losesATask(t, m)
		stop()
		<-ended
		store = store.copied()
		servers = newRollingBack(store)
		_, stop, ended = leads(t, store, cutsEveryHour, servers, hourly)
		defer func() { stop(); <-ended }()
		time.Sleep(soon)
		if got := servers.last(); got != 2 {
			t.Errorf("servers are at epoch %d: expected 2", got)
		}
	})
}

// registered is a registry whose watch reports a change on a signal.
type registered chan struct{}

func (r registered) Each(ctx context.Context, changed func([]store.Server)) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r:
			changed(nil)
		}
	}
}

func (r registered) Evict(context.Context, store.Server) error { return nil }

// A server that registers is brought to the epoch of the job immediately, or after resendEvery without a report of
// the registry.
func TestServerThatRegistersIsRolledBackAtOnce(t *testing.T) {
	for name, isSeen := range map[string]bool{"the registry changes": true, "the change is not seen": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := newMemory()
				servers, registry := newRollingBack(store), make(registered)
				config := cutsEveryHour
				config.Store, config.Log = store, quiet()
				config = controlled(config, servers, pscontrol.Config{Registry: registry, CheckpointEvery: hourly.CheckpointEvery, CheckpointKeep: 1})
				m, err := New(config)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); _ = m.Run(ctx) }()
				defer func() { cancel(); <-ended }()
				time.Sleep(soon)
				servers.set(false, 0)
				want := uint32(0)
				if isSeen {
					registry <- struct{}{}
					want = 2
				}
				time.Sleep(soon)
				if got := servers.last(); got != want {
					t.Errorf("the server is at epoch %d: expected %d", got, want)
				}
				time.Sleep(resendEvery)
				if got := servers.last(); got != 2 {
					t.Errorf("after %v the server is at epoch %d: expected 2", resendEvery, got)
				}
			})
		})
	}
}

// leavingServer is a parameter server that keeps checkpoints and is gone at every second look.
type leavingServer struct {
	*rollingBack
	looks int
}

func (s *leavingServer) States(context.Context) ([]pscontrol.ServerState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looks++; s.looks%2 == 0 {
		return []pscontrol.ServerState{{}}, nil
	}
	return []pscontrol.ServerState{{Present: true, Ready: true, Epoch: s.rolledBack, KeepsCheckpoints: true}}, nil
}

// A server that is lost between the check of the servers and the cut is no server without checkpoints: the cut fails, and counts no
// task without a set.
func TestCutFailsWhenServerIsLostBeforeIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, ended := leads(t, store, cutsEveryHour, &leavingServer{rollingBack: newRollingBack(store)}, hourly)
		defer func() { stop(); <-ended }()
		time.Sleep(soon)
		var place taskqueue.StepPlace
		if err := m.current.Load().Read(t.Context(), func(q *taskqueue.Queue) { place = q.Steps() }); err != nil || place.Step != 0 {
			t.Errorf("cut %d was committed, %v: expected none", place.Step, err)
		}
		if s := m.config.Servers.Checkpoint(); s.Set != 0 {
			t.Errorf("found %+v, expected no checkpoint", s)
		}
	})
}

// With a cadence of passes no timer runs. The end of a pass makes the checkpoint due.
func TestPassEndTriggersCheckpoint(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &cutting{store: store}
		m, stop, ended := leads(t, store, Config{Queue: taskqueue.Options{Passes: 3}}, s, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Passes: 1}})
		defer func() { stop(); <-ended }()
		register(t, m, 1)
		a := joins(t, m, "a")
		time.Sleep(soon)
		s.taken() // the first checkpoint, taken immediately
		for pass := range 2 {
			if !a.next() {
				t.Fatalf("expected a task in pass %d", pass+1)
			}
		}
		time.Sleep(soon)
		if got := s.taken(); strings.Count(got, "latest") != 1 {
			t.Errorf("after the first pass: %q, expected one set", got)
		}
	})
}

// unsavedServers are two parameter servers without checkpoints.
type unsavedServers struct {
	*rollingBack
	lost bool // one of them is not registered
}

func (s *unsavedServers) States(context.Context) ([]pscontrol.ServerState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []pscontrol.ServerState{{Present: true, Ready: true, Epoch: s.rolledBack}, {Present: !s.lost, Ready: true, Epoch: s.rolledBack}}, nil
}

func (s *unsavedServers) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
}

// A synchronous job whose parameter servers keep no checkpoints counts its tasks, and fails as soon as it must roll back.
func TestJobWithoutCheckpointsFailsWhenItMustRollBack(t *testing.T) {
	for name, loss := range map[string]struct {
		happens func(*unsavedServers)
		says    string
	}{
		"lost server":      {(*unsavedServers).lose, "parameter server 1 was lost"},
		"restarted server": {func(s *unsavedServers) { s.set(false, 0) }, "parameter server 0 was restarted"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := newMemory()
				servers := &unsavedServers{rollingBack: newRollingBack(store)}
				servers.set(false, 0)
				config := cutsEveryHour
				config.Sync = true
				m, stop, ended := leads(t, store, config, servers, hourly)
				defer stop()
				time.Sleep(soon)
				if got := servers.last(); got != 2 {
					t.Fatalf("servers of a job that has not begun are at epoch %d: expected 2", got)
				}
				register(t, m, 4)
				w := joins(t, m, "a")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w.sendHeartbeats(ctx, false)
				if _, _, err := m.LastStep(t.Context(), &taskqueue.LastStep{Trainer: w.Ordinal, Incarnation: w.Incarnation}); err != nil {
					t.Fatal(err)
				}
				if reply, err := m.Next(t.Context(), &taskqueue.Request{Trainer: w.Ordinal, Incarnation: w.Incarnation, Seq: 1, Ack: 1, Want: true, Epoch: 2}); err != nil || reply.Assignment == nil {
					t.Fatalf("no task: %+v, %v", reply, err)
				}
				if _, included, err := m.Staged(t.Context(), w.Ordinal, w.Incarnation, 0, 5, 2); err != nil || !included {
					t.Fatalf("included %t, %v: expected a step", included, err)
				}
				loss.happens(servers)
				time.Sleep(resendEvery + soon)
				status, err := m.Status(t.Context())
				if err != nil || status.Status != taskqueue.Failed || !strings.Contains(status.Reason, loss.says) || !strings.Contains(status.Reason, "--checkpoint-dir") {
					t.Errorf("%v %q, %v: expected that the job failed, with %q", status.Status, status.Reason, err, loss.says)
				}
				if got := servers.last(); got > 2 {
					t.Errorf("servers were rolled back to epoch %d: expected that they stay", got)
				}
				time.Sleep(time.Minute) // more than the linger
				select {
				case err := <-ended:
					if !errors.Is(err, ErrJobFailed) {
						t.Errorf("the master ended with %v: expected %v", err, ErrJobFailed)
					}
				default: // a master without a failed job never ends, and virtual time continues
					t.Errorf("the master has not ended a minute after the loss: expected %v", ErrJobFailed)
				}
			})
		})
	}
}

// The leader is lost together with parameter servers without checkpoints. The next leader fails the job, also if no server remains, or
// if the operator gives the replaced servers a checkpoint directory.
func TestJobWithoutCheckpointsFailsAfterLossOfLeaderAndServers(t *testing.T) {
	for name, remain := range map[string]bool{"none remains": false, "they keep checkpoints": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := newMemory()
				servers := &unsavedServers{rollingBack: newRollingBack(store)}
				servers.set(false, 1)
				config := cutsEveryHour
				config.Queue.Passes = 2
				m, stop, ended := leads(t, store, config, servers, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Passes: 1}})
				register(t, m, 1)
				w := memberOf(t, m, "a")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w.flushes(ctx, 0)
				if !w.next() {
					t.Fatal("expected a task")
				}
				time.Sleep(resendEvery)
				stop()
				<-ended
				next := newRollingBack(store)
				next.set(!remain, 0)
				m, stop, ended = leads(t, store, config, next, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Passes: 1}})
				defer stop()
				time.Sleep(resendEvery + soon)
				status, err := m.Status(t.Context())
				if err != nil || status.Status != taskqueue.Failed || !strings.Contains(status.Reason, "--checkpoint-dir") {
					t.Fatalf("%v %q, %v: expected that the job failed", status.Status, status.Reason, err)
				}
				time.Sleep(time.Minute) // more than the linger
				if err := <-ended; !errors.Is(err, ErrJobFailed) {
					t.Errorf("the master ended with %v: expected %v", err, ErrJobFailed)
				}
			})
		})
	}
}

// A job in its last epoch cannot roll back again: frames to parameter servers have 16 bits for the epoch. It fails with the reason when it
// must, and refuses another number of servers. Its epoch and its place stay.
func TestJobInItsLastEpochFailsWhenItMustRollBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		absent := newRollingBack(store)
		absent.set(true, 1)
		m, stop, ended := leads(t, store, cutsEveryHour, absent, hourly)
		register(t, m, 4)
		stop()
		<-ended
		store = inEpoch(t, store, taskqueue.MaxEpoch-1)
		servers := newRollingBack(store)
		servers.set(false, 0) // it has restarted: one more rollback
		m, stop, ended = leads(t, store, cutsEveryHour, servers, hourly)
		defer stop()
		time.Sleep(soon)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		joins(t, m, "a").sendHeartbeats(ctx, false) // the term lasts until the trainer has learned the end
		if got := servers.last(); got != taskqueue.MaxEpoch {
			t.Fatalf("rollback to the last epoch: expected servers at epoch %d, found %d", taskqueue.MaxEpoch, got)
		}
		if _, err := m.config.Servers.Scale(t.Context(), 2); !errors.Is(err, taskqueue.ErrTooOften) {
			t.Errorf("another number of servers: expected %v, found %v", taskqueue.ErrTooOften, err)
		}
		var before taskqueue.StepPlace
		if err := m.current.Load().Read(t.Context(), func(q *taskqueue.Queue) { before = q.Steps() }); err != nil {
			t.Fatal(err)
		}
		if status, err := m.Status(t.Context()); err != nil || status.Status == taskqueue.Failed {
			t.Fatalf("last epoch: expected a job that continues, found %v, %q, %v", status.Status, status.Reason, err)
		}
		servers.set(false, 0)
		time.Sleep(resendEvery + soon)
		status, err := m.Status(t.Context())
		const why = "parameter server 0 was restarted, and too many rollbacks or restores of the job: the job is in its last epoch, 65535: start a new job"
		if err != nil || status.Status != taskqueue.Failed || !strings.Contains(status.Reason, why) {
			t.Errorf("expected a failed job with %q, found %v, %q, %v", why, status.Status, status.Reason, err)
		}
		var after taskqueue.StepPlace
		if err := m.current.Load().Read(t.Context(), func(q *taskqueue.Queue) { after = q.Steps() }); err != nil || after != before {
			t.Errorf("place of the job: expected %+v, found %+v, %v", before, after, err)
		}
		time.Sleep(resendEvery)
		if got := servers.last(); got != taskqueue.MaxEpoch {
			t.Errorf("restarted server: expected the last set in epoch %d, found epoch %d", taskqueue.MaxEpoch, got)
		}
		time.Sleep(time.Minute) // more than the linger
		if err := <-ended; !errors.Is(err, ErrJobFailed) {
			t.Errorf("expected %v, found %v", ErrJobFailed, err)
		}
	})
}

// inEpoch returns a copy of a store whose job is in the given epoch.
func inEpoch(t *testing.T, s *memory, epoch uint32) *memory {
	t.Helper()
	s = s.copied()
	var snapshot taskqueue.Snapshot
	if err := s.Decode(s.keys["/task_queues"], &snapshot, committer.MaxStoredState); err != nil {
		t.Fatal(err)
	}
	snapshot.Epoch = epoch
	state, err := s.Encode(&snapshot)
	if err != nil {
		t.Fatal(err)
	}
	s.keys["/task_queues"] = state
	return s
}
