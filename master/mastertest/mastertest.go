// Package mastertest implements test helpers: a leader on a real etcd, and a check of its ledger, which proves that each task was
// counted once.
package mastertest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore"
	"trainmaster/internal/portsplit"
	"trainmaster/master"
	"trainmaster/master/grpcapi"
	"trainmaster/master/netrpc"
	"trainmaster/master/pscontrol"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// LeaseTTL of the masters: a busy machine keeps it.
const LeaseTTL = 5 * time.Second

// Running is a master that a test started; it ends with the test.
type Running struct {
	*master.Master
	Addr  string // of net/rpc, gRPC and heartbeats
	Store *etcdstore.Store
	Log   *logtest.Hook

	t      testing.TB
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of Run, once ended
	served sync.WaitGroup
}

// Start starts a master with its interfaces for trainers and waits until it leads.
func Start(t testing.TB, store *etcdstore.Store, config master.Config) *Running {
	t.Helper()
	r := StandBy(t, store, config, nil)
	r.AwaitLeading()
	return r
}

// StandBy starts a master with its net/rpc and gRPC APIs. servers may be nil unless config.Sync. checkpoints has the settings of their control,
// if there are any.
func StandBy(t testing.TB, store *etcdstore.Store, config master.Config, servers pscontrol.Servers, checkpoints ...pscontrol.Config) *Running {
	t.Helper()
	return StandByOn(t, store, config, servers, portsplit.Config{}, checkpoints...)
}

// StandByOn is StandBy with bounds of the port.
func StandByOn(t testing.TB, store *etcdstore.Store, config master.Config, servers pscontrol.Servers, port portsplit.Config, checkpoints ...pscontrol.Config) *Running {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	logger, hook := logtest.NewNullLogger()
	log := logrus.NewEntry(logger)
	config.Advertise = listener.Addr().String()
	config.Store, config.Log, config.LeaseTTL = store, log, LeaseTTL
	if servers != nil {
		var c pscontrol.Config
		if len(checkpoints) > 0 {
			c = checkpoints[0]
		}
		c.Servers, c.Store, c.Log = servers, store, log
		c.Sync, c.Cuts, c.Backups = config.Sync, config.Queue.Cuts, config.Backups
		config.Servers = pscontrol.New(c)
		config.Components = append(config.Components, config.Servers.Components()...)
	}
	m, err := master.New(config)
	if err != nil {
		listener.Close()
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Running{Master: m, Addr: config.Advertise, Store: store, Log: hook, t: t, cancel: cancel, ended: make(chan struct{})}
	server, api := &netrpc.Server{Master: m, Log: log}, grpcapi.New(m, log)
	serving, stopServing := context.WithCancel(context.Background())
	port.Log, port.Reserved = log, portsplit.HTTPGet
	split := portsplit.New(listener, port)
	calls, grpcCalls, gets := split.Branch(portsplit.HTTPConnect), split.Branch(portsplit.HTTP2), split.Branch(portsplit.HTTPGet)
	heartbeats := &http.Server{Handler: http.HandlerFunc(m.ServeHeartbeats)}
	r.serve(func() error { return split.Run(serving) })
	r.serve(func() error { return server.Serve(serving, calls) })
	r.serve(func() error { return api.Serve(serving, grpcCalls) })
	r.serve(func() error {
		defer context.AfterFunc(serving, func() { heartbeats.Close() })()
		if err := heartbeats.Serve(gets); serving.Err() == nil {
			return err
		}
		return nil
	})
	go func() {
		defer close(r.ended)
		defer stopServing()
		r.err = m.Run(ctx)
	}()
	t.Cleanup(func() {
		err := r.Stop()
		if t.Failed() {
			t.Logf("%s ended with %v, after these lines", config.Advertise, err)
			entries := hook.AllEntries()
			for _, e := range entries[max(0, len(entries)-50):] {
				t.Logf("%s: %s %v", config.Advertise, e.Message, e.Data)
			}
		}
	})
	return r
}

func (r *Running) serve(run func() error) {
	r.served.Go(func() {
		if err := run(); err != nil {
			r.t.Error(err)
		}
	})
}

// Stop ends the master as SIGTERM does, and returns what Run returned.
func (r *Running) Stop() error {
	r.cancel()
	return r.Wait()
}

// Wait waits until the master has ended, and returns what Run returned.
func (r *Running) Wait() error {
	<-r.ended
	r.served.Wait()
	return r.err
}

// Ended reports whether Run has returned.
func (r *Running) Ended() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// AwaitLeading waits until the master leads.
func (r *Running) AwaitLeading() {
	r.t.Helper()
	for !r.Leading() {
		select {
		case <-r.ended:
			r.t.Fatalf("the master ended before it led: %v", r.err)
		case <-time.After(time.Millisecond):
		}
	}
}

// Logged returns the messages of the log lines so far.
func (r *Running) Logged() []string {
	var lines []string
	for _, e := range r.Log.AllEntries() {
		lines = append(lines, e.Message)
	}
	return lines
}

// Register makes Table(n) the dataset of the job.
func (r *Running) Register(n int) {
	r.t.Helper()
	if err := r.Master.Register(r.t.Context(), Table(r.t, n), Digest(n)); err != nil {
		r.t.Fatal(err)
	}
}

// Digest is that of Table(n).
func Digest(n int) [32]byte { return sha256.Sum256([]byte(strconv.Itoa(n))) }

// Table is a task table of n tasks of one chunk each, in files of 100 chunks that do not exist.
func Table(t testing.TB, n int) *taskqueue.Table {
	t.Helper()
	return TableOf(t, n, 100)
}

// TableOf is a task table of n tasks of one chunk each, in files that do not exist.
func TableOf(t testing.TB, n, perFile int) *taskqueue.Table {
	t.Helper()
	table := taskqueue.NewTable(n)
	for f := 0; f*perFile < n; f++ {
		var chunks []recordio.Index
		offset := int64(0)
		for range min(perFile, n-f*perFile) {
			chunks = append(chunks, recordio.Index{Offset: offset, Size: 1000, Records: 10, Layout: 1})
			offset += recordio.HeaderSize + 1000
		}
		if err := table.Add(taskqueue.File{Path: fmt.Sprintf("/data/part-%05d", f), Size: offset}, chunks); err != nil {
			t.Fatal(err)
		}
	}
	table.Group(1)
	return table
}

// Eventually waits until something is so.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	const patience = 30 * time.Second
	for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// State reads and decodes what stands under /task_queues.
func State(t testing.TB, store *etcdstore.Store) (state *taskqueue.Snapshot, encoded []byte, revision int64) {
	t.Helper()
	encoded, revision, err := store.State(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	state = &taskqueue.Snapshot{}
	if err := etcdstore.Decode(encoded, state, 64<<20); err != nil {
		t.Fatal(err)
	}
	return state, encoded, revision
}

// Verify checks the ledger and the stored state. In each pass, every task must be counted at most once; in a closed
// pass, it must be counted exactly once or set aside. Verify returns a report of each pass.
func Verify(t testing.TB, store *etcdstore.Store) []taskqueue.PassReport {
	t.Helper()
	values, _, err := store.Prefixed(context.Background(), "/ledger/")
	if err != nil {
		t.Fatal(err)
	}
	state, _, _ := State(t, store)
	verifier := taskqueue.NewVerifier()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		commit, err := strconv.ParseUint(strings.TrimPrefix(key, "/ledger/"), 16, 64)
		if err != nil {
			continue // not the events of a commit
		}
		if commit > state.Commit {
			break // written since the state was read
		}
		if err := verifier.Add(commit, values[key]); err != nil {
			t.Fatal(err)
		}
	}
	if err := verifier.CrossCheck(state); err != nil {
		t.Fatal(err)
	}
	reports := verifier.Report()
	for _, p := range reports {
		if p.Missing != 0 || p.CountedTwice != 0 {
			t.Errorf("pass %d: %d tasks missing, %d counted twice", p.Pass, p.Missing, p.CountedTwice)
		}
	}
	return reports
}

// Trainer is a joined trainer that calls the master in this process.
type Trainer struct {
	master.Session
	master *master.Master
	seq    uint64
}

// Join begins a session.
func (r *Running) Join(id string) *Trainer {
	r.t.Helper()
	session, err := r.Master.Join(r.t.Context(), id, "")
	if err != nil {
		r.t.Fatal(err)
	}
	return NewTrainer(session, r.Master)
}

// NewTrainer is a trainer whose session began.
func NewTrainer(session master.Session, m *master.Master) *Trainer {
	return &Trainer{Session: session, master: m}
}

// At is the same trainer at another master.
func (t *Trainer) At(r *Running) *Trainer {
	moved := *t
	moved.master = r.Master
	return &moved
}

// Request returns the next request of this trainer.
func (t *Trainer) Request(held, finished []taskqueue.Token) *taskqueue.Request {
	t.seq++
	request := &taskqueue.Request{
		Trainer: t.Ordinal, Incarnation: t.Incarnation, Seq: t.seq, Ack: t.seq, Held: held, Want: true, JobID: t.JobID,
	}
	for _, token := range finished {
		request.Finished = append(request.Finished, taskqueue.Result{Token: token})
	}
	return request
}

// Next reports the finished tasks and waits for a task.
func (t *Trainer) Next(ctx context.Context, finished ...taskqueue.Token) (master.Reply, error) {
	return t.master.Next(ctx, t.Request(nil, finished))
}

// Take waits for a task.
func (t *Trainer) Take(tb testing.TB, finished ...taskqueue.Token) taskqueue.Token {
	tb.Helper()
	reply, err := t.Next(tb.Context(), finished...)
	if err != nil {
		tb.Fatal(err)
	}
	if reply.Assignment == nil {
		tb.Fatal("expected a task, found none available")
	}
	return reply.Assignment.Task.Token
}

// Leave ends the session in order.
func (t *Trainer) Leave(tb testing.TB) {
	tb.Helper()
	if err := t.master.Leave(context.Background(), t.Ordinal, t.Incarnation); err != nil {
		tb.Error(err)
	}
}

// Work requests and finishes tasks until the job ends, repeats unanswered requests, and leaves.
func (t *Trainer) Work(ctx context.Context) error { return t.WorkWhile(ctx, func() {}) }

// WorkWhile is Work for a trainer that calls let before each request.
func (t *Trainer) WorkWhile(ctx context.Context, let func()) error {
	var finished []taskqueue.Token
	for {
		let()
		request := t.Request(nil, finished)
		reply, err := t.master.Next(ctx, request)
		for errors.Is(err, master.ErrNotLeader) || errors.Is(err, master.ErrNotStored) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(5 * time.Millisecond):
			}
			repeat := *request
			reply, err = t.master.Next(ctx, &repeat)
		}
		if errors.Is(err, master.ErrJobFinished) {
			return t.master.Leave(ctx, t.Ordinal, t.Incarnation)
		}
		if err != nil {
			return err
		}
		finished = nil
		if reply.Assignment != nil {
			finished = append(finished, reply.Assignment.Task.Token)
		}
	}
}
