package master

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore"
	"trainmaster/ledger"
	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/master/pscontrol"
	"trainmaster/master/store"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// memory is a store for one master with a configurable write time. It works in a synctest bubble, where a real etcd
// cannot run.
type memory struct {
	ledger.Lock // nil: no ledger is sealed

	mu       sync.Mutex
	keys     map[string][]byte
	revision int64
	term     int64         // create revision of the lock
	state    int64         // revision of the state
	takes    time.Duration // time of each write
	refuse   error         // error of each write
	lost     chan struct{}
	doubtful bool // the lease may have expired
	commits  []time.Time

	partsHang chan struct{} // parts are answered once it is closed; nil: immediately
	partsFit  int           // the store is full from this part on; 0: never

	announcing  time.Duration // time of an announcement
	unannounced error         // error of an announcement
}

func newMemory() *memory {
	return &memory{term: 1, keys: map[string][]byte{}, takes: time.Millisecond, lost: make(chan struct{})}
}

func (s *memory) set(takes time.Duration, refuse error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes, s.refuse = takes, refuse
}

// doubt makes the lease look expired.
func (s *memory) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubtful = true
}

func (s *memory) Valid() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.doubtful
}

func (s *memory) written() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits[:len(s.commits):len(s.commits)]
}

func (s *memory) Lead(context.Context, store.Campaign) (store.Leadership, error) { return s, nil }
func (s *memory) WatchLeader(ctx context.Context) <-chan store.Candidate {
	return untilEnd[store.Candidate](ctx)
}
func (s *memory) WatchState(ctx context.Context) <-chan store.Version {
	return untilEnd[store.Version](ctx)
}

// untilEnd returns a channel that sends the values and closes when ctx ends.
func untilEnd[V any](ctx context.Context, values ...V) <-chan V {
	c := make(chan V, len(values))
	for _, v := range values {
		c <- v
	}
	context.AfterFunc(ctx, func() { close(c) })
	return c
}

func (s *memory) TakeOver(context.Context, store.Candidate, store.Takeover) error { return nil }
func (s *memory) ClusterID(context.Context) (uint64, error)                       { return 1, nil }
func (s *memory) EnsureJob(context.Context, string, map[string]string) error      { return nil }
func (s *memory) PartKey(id string, i int) string                                 { return fmt.Sprintf("/parts/%s/%d", id, i) }
func (s *memory) Encode(v any) ([]byte, error)                                    { return etcdstore.Encode(v) }
func (s *memory) Decode(b []byte, v any, limit int64) error                       { return etcdstore.Decode(b, v, limit) }
func (s *memory) Revision() int64                                                 { return s.term }
func (s *memory) TTL() time.Duration                                              { return 5 * time.Second }
func (s *memory) Lost() <-chan struct{}                                           { return s.lost }
func (s *memory) Resign(context.Context) error                                    { return nil }

func (s *memory) Announce(ctx context.Context, _ string, _ uint64) error {
	pause(ctx, s.announcing)
	return errors.Join(s.unannounced, ctx.Err())
}

func (s *memory) Parts(_ context.Context, id string, first, n int) ([][]byte, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := make([][]byte, n)
	for i := range parts {
		parts[i] = s.keys[s.PartKey(id, first+i)]
	}
	return parts, s.revision, nil
}

func (s *memory) Roster(context.Context) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	roster := map[string][]byte{}
	for key, value := range s.keys {
		if id, ok := strings.CutPrefix(key, taskqueue.RosterPrefix); ok {
			roster[id] = value
		}
	}
	return roster, nil
}

func (s *memory) Prefixed(context.Context, string) (map[string][]byte, int64, error) {
	return nil, 0, nil
}

func (s *memory) Value(_ context.Context, key string) ([]byte, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key], s.revision, nil
}

func (s *memory) ReadState(context.Context) ([]byte, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys["/task_queues"], s.state, nil
}

func (s *memory) Commit(_ context.Context, expected int64, state []byte, writes []taskqueue.Write) (int64, error) {
	s.mu.Lock()
	takes, refuse := s.takes, s.refuse
	s.mu.Unlock()
	time.Sleep(takes) // virtual time
	if refuse != nil {
		return 0, refuse
	}
	if len(writes)+1 > 128 { // --max-txn-ops of etcd
		return 0, errors.New("too many operations in txn request")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != expected {
		return 0, taskqueue.ErrFenced
	}
	s.revision++
	s.state = s.revision
	s.keys["/task_queues"] = state
	s.put(writes)
	s.commits = append(s.commits, time.Now())
	return s.revision, nil
}

func (s *memory) PutParts(ctx context.Context, _ int64, parts []taskqueue.Write, _ func(done, total int)) error {
	s.mu.Lock()
	hang := s.partsHang
	s.mu.Unlock()
	if hang != nil {
		select {
		case <-ctx.Done():
		case <-hang:
		}
		return taskqueue.ErrUnknownOutcome
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.partsFit > 0 {
		s.partsFit--
		if s.partsFit == 0 {
			s.refuse = taskqueue.ErrStoreFull
			return taskqueue.ErrStoreFull
		}
	}
	s.put(parts)
	return nil
}

func (s *memory) put(writes []taskqueue.Write) {
	for _, w := range writes {
		if w.Delete {
			delete(s.keys, w.Key)
		} else {
			s.keys[w.Key] = w.Value
		}
	}
}

// copied returns a copy of the store for the next master.
func (s *memory) copied() *memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := newMemory()
	next.keys, next.revision, next.state = maps.Clone(s.keys), s.revision+1, s.state
	next.term = next.revision // the lock of the next master is newer
	return next
}

// bubble runs a test in a synctest bubble.
func bubble(t *testing.T, test func(t *testing.T)) {
	synctest.Test(t, test)
}

// leads starts a master and waits until it leads.
func leads(t *testing.T, store *memory, config Config, servers pscontrol.Servers, checkpoints ...pscontrol.Config) (m *Master, stop func(), ended <-chan error) {
	t.Helper()
	m, stop, ended = starts(t, store, config, servers, checkpoints...)
	for limit := time.Now().Add(time.Minute); !m.Leading(); time.Sleep(time.Millisecond) { // virtual time
		if time.Now().After(limit) {
			t.Fatal("expected leadership within a minute")
		}
	}
	return m, stop, ended
}

// starts starts a master in a bubble. stop stops the master; ended receives the result of Run.
func starts(t *testing.T, store *memory, config Config, servers pscontrol.Servers, checkpoints ...pscontrol.Config) (m *Master, stop func(), ended <-chan error) {
	t.Helper()
	config.Store = store
	if config.Log == nil {
		config.Log = quiet()
	}
	m, err := New(controlled(config, servers, checkpoints...))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done, stopped := make(chan error, 1), make(chan struct{})
	go func() {
		done <- m.Run(ctx)
		close(stopped)
	}()
	stop = func() {
		cancel()
		<-stopped
		synctest.Wait()
	}
	t.Cleanup(stop)
	return m, stop, done
}

// controlled adds the control of parameter servers to a configuration. checkpoints has its settings, if there are any.
func controlled(config Config, servers pscontrol.Servers, checkpoints ...pscontrol.Config) Config {
	var c pscontrol.Config
	if len(checkpoints) > 0 {
		c = checkpoints[0]
	}
	c.Servers, c.Store, c.Log = servers, config.Store, config.Log
	c.Sync, c.Cuts, c.Backups = config.Sync, config.Queue.Cuts, config.Backups
	config.Servers = pscontrol.New(c)
	config.Components = append(config.Components, config.Servers.Components()...)
	return config
}

func quiet() *logrus.Entry {
	logger, _ := logtest.NewNullLogger()
	return logrus.NewEntry(logger)
}

// driven is a term whose rounds the test runs.
type driven struct {
	*committer.Committer
	t *testing.T
}

// recoverTerm recovers a term without goroutines and components.
func recoverTerm(ctx context.Context, lead store.Leadership, config Config) (*committer.Committer, error) {
	return committer.Recover(ctx, lead, config.Committer(), nil, func() {}, func() {})
}

func drives(t *testing.T, store *memory, config Config) driven {
	t.Helper()
	config.Store, config.Log = store, quiet()
	term, err := recoverTerm(t.Context(), store, config)
	if err != nil {
		t.Fatal(err)
	}
	return driven{term, t}
}

func (d driven) put(event taskqueue.Event) *committer.Pending {
	d.t.Helper()
	e, err := d.Put(d.t.Context(), event)
	if err != nil {
		d.t.Fatal(err)
	}
	return e
}

func (d driven) round(tick bool) {
	d.t.Helper()
	if err := d.Round(d.t.Context(), tick); err != nil {
		d.t.Fatal(err)
	}
}

func register(t *testing.T, m *Master, tasks int) {
	t.Helper()
	table := taskqueue.NewTable(tasks)
	chunks := make([]recordio.Index, tasks)
	for i := range chunks {
		chunks[i] = recordio.Index{Offset: int64(i) * (recordio.HeaderSize + 100), Size: 100, Records: 10, Layout: 1}
	}
	if err := table.Add(taskqueue.File{Path: "/data/a", Size: int64(tasks) * (recordio.HeaderSize + 100)}, chunks); err != nil {
		t.Fatal(err)
	}
	if err := m.Register(t.Context(), table, [32]byte{1}); err != nil {
		t.Fatal(err)
	}
}

// worker is a joined trainer in a bubble.
type worker struct {
	Session
	t     *testing.T
	m     *Master
	seq   uint64
	epoch uint32          // of a job with cuts
	held  taskqueue.Token // zero: none

	finished bool          // the job
	step     atomic.Uint64 // of the cut that comes next, in a job with cuts
}

func joins(t *testing.T, m *Master, id string) *worker {
	t.Helper()
	s, err := m.Join(t.Context(), id, "")
	if err != nil {
		t.Fatal(err)
	}
	return &worker{Session: s, t: t, m: m}
}

// memberOf joins a trainer of a job with cuts.
func memberOf(t *testing.T, m *Master, id string) *worker {
	t.Helper()
	w := joins(t, m, id)
	w.epoch = 1
	w.step.Store(1)
	if _, _, err := m.LastStep(t.Context(), &taskqueue.LastStep{Trainer: w.Ordinal, Incarnation: w.Incarnation, Epoch: w.epoch}); err != nil {
		t.Fatal(err)
	}
	return w
}

// flushes makes a trainer flush each cut, after a delay, until ctx ends.
func (w *worker) flushes(ctx context.Context, after time.Duration) {
	go func() {
		for ctx.Err() == nil {
			if p, done, err := w.m.CutWatch(ctx, &taskqueue.CutWatch{Trainer: w.Ordinal, Incarnation: w.Incarnation}); err == nil && done {
				pause(ctx, after)
				_, _, _ = w.m.Flushed(ctx, &taskqueue.StepFlushed{Trainer: w.Ordinal, Incarnation: w.Incarnation, Generation: p.Generation, Step: p.Round})
				w.step.Store(p.Round + 1)
			}
			pause(ctx, 10*time.Millisecond)
		}
	}()
}

// next finishes the held task and waits for a task. It returns false without a task and after the end of the job.
func (w *worker) next() bool {
	w.seq++
	r := &taskqueue.Request{Trainer: w.Ordinal, Incarnation: w.Incarnation, Seq: w.seq, Ack: w.seq, Want: true, Epoch: w.epoch}
	if !w.held.IsZero() {
		r.Finished = []taskqueue.Result{{Token: w.held, Step: w.step.Load()}}
	}
	reply, err := w.m.Next(w.t.Context(), r)
	w.held = taskqueue.Token{}
	switch {
	case errors.Is(err, ErrJobFinished):
		w.finished = true
		return false
	case err != nil:
		w.t.Errorf("trainer %d: %v", w.Ordinal, err)
		return false
	case reply.Assignment == nil:
		return false
	}
	w.held = reply.Assignment.Task.Token
	return true
}

// sendHeartbeats sends a heartbeat every three seconds until ctx ends. A moving trainer reports progress.
func (w *worker) sendHeartbeats(ctx context.Context, moving bool) {
	go func() {
		for ctx.Err() == nil {
			beat := &taskqueue.Heartbeat{Trainer: w.Ordinal, Incarnation: w.Incarnation}
			if moving && !w.held.IsZero() {
				beat.Moving = []taskqueue.Token{w.held}
			}
			if _, err := w.m.Heartbeat(ctx, beat); err != nil && ctx.Err() == nil && !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrJobFailed) {
				w.t.Errorf("trainer %d: heartbeat: %v", w.Ordinal, err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(3 * time.Second):
			}
		}
	}()
}

// The times of package pscontrol.
const (
	resendEvery     = 5 * time.Second
	beginTimeout    = 10 * time.Second
	checkpointPause = time.Minute
	statesRetry     = 200 * time.Millisecond
	stepTimeout     = 10 * time.Second
	stepRetry       = 500 * time.Millisecond
)

func pause(ctx context.Context, d time.Duration) { component.MachineClock{}.Sleep(ctx, d) }
