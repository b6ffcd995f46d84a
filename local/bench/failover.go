package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// Faults of Failover.
const (
	Resign = "resign" // SIGTERM
	Kill   = "kill"   // SIGKILL
	Hang   = "hang"   // SIGSTOP, and SIGCONT once another one leads
)

// Failover measures the pause of a job whose leader stops: from the signal to the next answer to a
// trainer, which is a committed dispatch by the next leader. With a fault of the only parameter server it measures how long
// pushes stop: from the signal to the reply to a push that was sent after it.
type Failover struct {
	Setup
	Mode     string // Resign, Kill or Hang, or a fault of a server
	N        int    // how often
	Holddown time.Duration
	TTL      time.Duration // of the servers' leases
}

// FailoverFigures is what it measures.
type FailoverFigures struct {
	Mode       string    `json:"mode"`
	N          int       `json:"n"`
	P50MS      float64   `json:"p50_ms"`
	P90MS      float64   `json:"p90_ms"`
	P99MS      float64   `json:"p99_ms"`
	MaxMS      float64   `json:"max_ms"`
	AllMS      []float64 `json:"all_ms"`
	Processors int       `json:"processors"`
	Disk       Disk      `json:"disk"`
}

const failoverMasters = 2 // a leader and a standby

// Validate names the first field that makes no sense.
func (f *Failover) Validate() error {
	switch {
	case f.N < 1:
		return fmt.Errorf("number: expected 1 or more, found %d", f.N)
	case f.TTL < time.Second:
		return fmt.Errorf("ps-ttl: expected at least 1s, found %v", f.TTL)
	case f.Holddown < 2*time.Second:
		return fmt.Errorf("holddown: expected at least 2s, the least that etcd grants, found %v", f.Holddown)
	}
	return nil
}

// failing is a running job whose faults are measured.
type failing interface {
	fault(context.Context) (time.Duration, error)
	close() error
}

// begin starts the job: with a leader to stop, or with a parameter server to stop.
func (f *Failover) begin(ctx context.Context, endpoint, dir string) (failing, error) {
	if !ofServer(f.Mode) {
		return f.scene(ctx, endpoint, dir)
	}
	s := &serverScene{
		Failover: f, endpoint: endpoint, dir: dir,
		masters: daemons{program: f.Program, endpoint: endpoint, dir: dir, flags: []string{"--ps", "1"}},
	}
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// Run starts etcd and the job, and makes the leader or the server fail N times.
func (f *Failover) Run(ctx context.Context) (figures FailoverFigures, err error) {
	figures = FailoverFigures{Mode: f.Mode, N: f.N, Processors: runtime.NumCPU()}
	if figures.Disk, err = measureDisk(f.Folder); err != nil {
		return figures, err
	}
	etcd, err := startEtcd(ctx, f.Program, f.Folder, etcdConfig{}, f.Stderr)
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, etcd.close()) }()
	dir, err := os.MkdirTemp(f.Folder, "master-bench-failover-")
	if err != nil {
		return figures, err
	}
	defer os.RemoveAll(dir)
	s, err := f.begin(ctx, etcd.Endpoint, dir)
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for i := range f.N {
		f.say("%s %d of %d", f.Mode, i+1, f.N)
		took, err := s.fault(ctx)
		if err != nil {
			return figures, fmt.Errorf("%s %d of %d: %w", f.Mode, i+1, f.N, err)
		}
		figures.AllMS = append(figures.AllMS, float64(took)/float64(time.Millisecond))
	}
	figures.summarize()
	return figures, nil
}

func (f *FailoverFigures) summarize() {
	sorted := slices.Sorted(slices.Values(f.AllMS))
	at := func(q float64) float64 { return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)] }
	f.P50MS, f.P90MS, f.P99MS, f.MaxMS = at(0.5), at(0.9), at(0.99), sorted[len(sorted)-1]
}

// scene is the running job.
type scene struct {
	*Failover
	daemons
	store    *etcdstore.Store
	follow   *trainer.Follow
	term     atomic.Uint64 // as announced
	client   *trainer.Client
	answers  chan time.Time // when a task was got; unread ones are dropped
	stop     context.CancelFunc
	ended    chan struct{} // nil until it trains
	trained  error         // why it ended, once ended is closed
	lastFall time.Time
}

func (f *Failover) scene(ctx context.Context, endpoint, dir string) (s *scene, err error) {
	masters := daemons{program: f.Program, endpoint: endpoint, dir: dir, flags: []string{"--holddown", f.Holddown.String()}}
	s = &scene{Failover: f, daemons: masters, follow: trainer.NewFollow(), answers: make(chan time.Time, 1)}
	data := filepath.Join(dir, "data")
	if err := writeRecords(data); err != nil {
		return nil, err
	}
	if s.store, err = etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{endpoint}}); err != nil {
		return nil, err
	}
	training, stop := context.WithCancel(ctx)
	s.stop = stop
	for range failoverMasters {
		if err := s.start(); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	go s.followLeader(training)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	if s.client, err = trainer.Join(ctx, trainer.Config{ID: "bench", Locate: s.follow, Log: logrus.NewEntry(quiet)}); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if err := s.client.ReportDataset(ctx, []string{data}); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		s.trained = s.train(training)
	}()
	return s, nil
}

// writeRecords writes a file of a thousand tiny chunks.
func writeRecords(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	w := recordio.NewWriter(file, recordio.WriterOptions{RecordsPerChunk: 1})
	for i := range 1000 {
		if err := w.Write(fmt.Appendf(nil, "record %d", i)); err != nil {
			return err
		}
	}
	return w.Close()
}

func (s *scene) followLeader(ctx context.Context) {
	for a := range s.store.WatchMasterAddr(ctx) {
		s.follow.Set(a.Addr, a.Term)
		if a.Addr != "" {
			s.term.Store(a.Term)
		}
	}
}

// train takes tasks and finishes them immediately.
func (s *scene) train(ctx context.Context) error {
	var done *taskqueue.Task
	for {
		task, err := s.client.Next(ctx, done)
		if err != nil {
			return err
		}
		select {
		case <-s.answers:
		default:
		}
		s.answers <- time.Now()
		done = task
	}
}

// Bounds of one round.
const (
	failoverPatience = 30 * time.Second
	settleTime       = 500 * time.Millisecond // for standbys to load the tables, and for trainers to have tasks
)

// fault stops the leader and returns the time without a task. It begins when there is a
// standby and the holddown of the last forced takeover has ended.
func (s *scene) fault(ctx context.Context) (time.Duration, error) {
	if err := s.awaitReady(ctx); err != nil {
		return 0, err
	}
	leader, err := s.store.MasterAddr(ctx)
	if err != nil {
		return 0, err
	}
	cmd := s.running[leader.Addr]
	if cmd == nil {
		return 0, fmt.Errorf("the leader at %q is none of ours", leader.Addr)
	}
	signals := map[string]syscall.Signal{Resign: syscall.SIGTERM, Kill: syscall.SIGKILL, Hang: syscall.SIGSTOP}
	began := time.Now()
	if err := cmd.Process.Signal(signals[s.Mode]); err != nil {
		return 0, err
	}
	took, err := s.nextAnswer(ctx, began, leader.Term)
	s.lastFall = time.Now()
	if s.Mode == Hang {
		return took, errors.Join(err, cmd.Process.Signal(syscall.SIGCONT))
	}
	_ = cmd.Wait() // it was killed or has resigned; the next leader leads in both cases
	delete(s.running, leader.Addr)
	return took, errors.Join(err, s.start())
}

// nextAnswer waits for the first task that a later term gave.
func (s *scene) nextAnswer(ctx context.Context, began time.Time, term uint64) (time.Duration, error) {
	patience := time.NewTimer(failoverPatience)
	defer patience.Stop()
	for {
		select {
		case at := <-s.answers:
			if s.term.Load() > term && at.After(began) {
				return at.Sub(began), nil
			}
		case <-s.ended:
			return 0, fmt.Errorf("the trainer stopped: %w", s.trained)
		case <-patience.C:
			return 0, fmt.Errorf("no answer within %v; the masters' log is %s", failoverPatience, s.log())
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// awaitReady waits until the next fault can be measured: no standby backs off.
func (s *scene) awaitReady(ctx context.Context) error {
	if s.Mode != Resign && !s.lastFall.IsZero() {
		if err := rest(ctx, time.Until(s.lastFall.Add(s.Holddown))); err != nil {
			return err
		}
	}
	for {
		queued, _, err := s.store.Prefixed(ctx, etcdstore.LockPrefix)
		if err != nil {
			return err
		}
		backOff, _, err := s.store.Value(ctx, etcdstore.FlappingKey)
		if err != nil {
			return err
		}
		if len(queued) >= failoverMasters && backOff == nil {
			return rest(ctx, settleTime)
		}
		if err := rest(ctx, settleTime/10); err != nil {
			return err
		}
	}
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(max(d, 0)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *scene) close() error {
	s.stop()
	if s.ended != nil {
		<-s.ended // because we stopped it
	}
	if s.client != nil {
		_ = s.client.Close() // its master is about to go
	}
	s.kill()
	return s.store.Close()
}
