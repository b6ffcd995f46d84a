package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/ledger"
	"trainmaster/master"
	"trainmaster/master/grpcapi"
	"trainmaster/master/mastertest"
	"trainmaster/master/psclient"
	"trainmaster/master/pscontrol"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// led is a job that a real master leads, with its gRPC API on a real port.
type led struct {
	sealer master.Sealer
	*master.Master
	t     *testing.T
	store *etcdstore.Store
	addr  string
	job   string
	etcd  []string      // the flags that lead to it through etcd
	stop  func()        // ends the master, as a signal does
	ended chan struct{} // closed when it has ended
}

// lead starts a master of a new job.
func lead(t *testing.T, config master.Config) *led {
	t.Helper()
	return leadJob(t, etcdtest.Store(t), config)
}

// leadJob starts a master of the store's job.
func leadJob(t *testing.T, store *etcdstore.Store, config master.Config) *led {
	t.Helper()
	return leadSealing(t, store, config, nil)
}

// leadSealing starts a master of the store's job, which seals the ledger unless sealing is nil.
func leadSealing(t *testing.T, store *etcdstore.Store, config master.Config, sealing *ledger.Config) *led {
	t.Helper()
	if sealing == nil {
		return leadWith(t, store, config, nil, nil)
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	sealing.Job = jobOf(store)
	return leadWith(t, store, config, &ledger.Sealer{Store: store, Config: *sealing, Log: logrus.NewEntry(quiet)}, nil)
}

func jobOf(store *etcdstore.Store) string { return strings.TrimPrefix(store.Prefix(), "/jobs/") }

// leadWith starts a master of the store's job that seals the ledger unless sealer is nil, and moves blocks between parameter servers
// unless told is nil.
func leadWith(t *testing.T, store *etcdstore.Store, config master.Config, sealer master.Sealer, told *psclient.Client) *led {
	t.Helper()
	l := &led{t: t, store: store, sealer: sealer, job: jobOf(store), ended: make(chan struct{})}
	l.etcd = []string{"--endpoints", etcdtest.Endpoint(t), "--job", l.job}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.addr = listener.Addr().String()
	config.Job, config.Advertise = l.job, l.addr
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	log := logrus.NewEntry(quiet)
	config.Store, config.Log, config.LeaseTTL, config.Ledger = store, log, time.Minute, sealer
	if told != nil { // a nil client would be one
		config.Servers = pscontrol.New(pscontrol.Config{
			Servers: told, Store: store, Log: log, Sync: config.Sync, Cuts: config.Queue.Cuts, Backups: config.Backups,
		})
		config.Components = config.Servers.Components()
	}
	if l.Master, err = master.New(config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := l.Run(ctx); err != nil && !errors.Is(err, master.ErrJobFailed) {
			t.Errorf("the master ended: %v", err)
		}
	})
	running.Go(func() {
		if err := grpcapi.New(l.Master, log).Serve(ctx, listener); err != nil {
			t.Errorf("its port ended: %v", err)
		}
	})
	go func() { running.Wait(); close(l.ended) }()
	l.stop = func() { cancel(); <-l.ended }
	t.Cleanup(l.stop)
	mastertest.Eventually(t, "leadership", l.Leading)
	return l
}

// report gives the job a dataset of n tasks, of one chunk each.
func (l *led) report(n int) {
	l.t.Helper()
	table := taskqueue.NewTable(n)
	var chunks []recordio.Index
	for i := range n {
		chunks = append(chunks, recordio.Index{Offset: int64(i) * (recordio.HeaderSize + 100), Size: 100, Records: 10, Layout: 1})
	}
	if err := table.Add(taskqueue.File{Path: "/data/a", Size: int64(n) * 120}, chunks); err != nil {
		l.t.Fatal(err)
	}
	if err := l.Register(l.t.Context(), table, sha256.Sum256([]byte("x"))); err != nil {
		l.t.Fatal(err)
	}
}

// session is one trainer.
type session struct {
	led  *led
	req  taskqueue.Request
	held []taskqueue.Task
}

func (l *led) join(id string) *session {
	l.t.Helper()
	s, err := l.Join(l.t.Context(), id, "")
	if err != nil {
		l.t.Fatal(err)
	}
	return &session{led: l, req: taskqueue.Request{Trainer: s.Ordinal, Incarnation: s.Incarnation}}
}

// send reports one result or none, and takes a task if one is wanted.
func (s *session) send(want bool, results ...taskqueue.Result) (taskqueue.Task, error) {
	s.req.Seq++
	s.req.Ack = s.req.Seq
	req := s.req
	req.Want, req.Finished = want, results
	for _, r := range results {
		s.held = slices.DeleteFunc(s.held, func(t taskqueue.Task) bool { return t.Token == r.Token })
	}
	for _, t := range s.held {
		req.Held = append(req.Held, t.Token)
	}
	reply, err := s.led.Next(s.led.t.Context(), &req)
	if err != nil || reply.Assignment == nil {
		return taskqueue.Task{}, err
	}
	s.held = append(s.held, reply.Assignment.Task)
	return reply.Assignment.Task, nil
}

// take is send for a trainer that must get a task.
func (s *session) take(results ...taskqueue.Result) taskqueue.Task {
	s.led.t.Helper()
	task, err := s.send(true, results...)
	if err != nil || len(task.Chunks) == 0 {
		s.led.t.Fatalf("expected a task, found %v, %v", task, err)
	}
	return task
}

func finish(t taskqueue.Task) taskqueue.Result { return taskqueue.Result{Token: t.Token} }

func fail(t taskqueue.Task, text string) taskqueue.Result {
	return taskqueue.Result{Token: t.Token, Error: text}
}

// standBy starts a second master of the same job, which cannot lead, and returns its address.
func standBy(t *testing.T, l *led) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	second, err := master.New(master.Config{
		Store: l.store, Log: logrus.NewEntry(quiet), Job: l.job, Advertise: listener.Addr().String(), LeaseTTL: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = second.Run(ctx) })
	running.Go(func() { _ = grpcapi.New(second, logrus.NewEntry(quiet)).Serve(ctx, listener) })
	t.Cleanup(func() { cancel(); running.Wait() })
	isWaiting := func() bool {
		_, err := second.Status(t.Context())
		return err != nil && err.Error() != master.ErrNotLeader.Error() // it has a reason
	}
	for !isWaiting() {
		time.Sleep(time.Millisecond) // between two looks
	}
	return listener.Addr().String()
}

// awaitEnd waits until the master ends its term because the job has ended, and stops it.
func (l *led) awaitEnd() {
	l.t.Helper()
	for tries := 0; l.Leading(); tries++ {
		if tries == 60_000 {
			l.t.Fatal("the job has ended, and its master still leads after a minute")
		}
		time.Sleep(time.Millisecond) // between two looks
	}
	l.stop()
}
