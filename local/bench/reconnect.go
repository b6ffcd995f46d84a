package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// Reconnect measures the failover of many trainers: all are connected to one leader and have
// long tasks when it stops, and reconnect to the standby.
type Reconnect struct {
	Setup
	Mode     string // Kill or Hang
	Trainers int
	Protocol trainer.Protocol // of the trainers
	TaskTime time.Duration    // of a task, on average
	Window   time.Duration    // over which latencies are gathered, before and after
}

// ReconnectFigures is what it measures.
type ReconnectFigures struct {
	Trainers     int     `json:"trainers"`
	Mode         string  `json:"mode"`
	JoinSeconds  float64 `json:"join_s"`        // for all to join
	BackSeconds  float64 `json:"back_s"`        // from the fault until the next leader had answered every trainer
	BackP50      float64 `json:"back_p50_s"`    // half of them
	P50BeforeMS  float64 `json:"p50_before_ms"` // of GetTask
	P99BeforeMS  float64 `json:"p99_before_ms"`
	P50AfterMS   float64 `json:"p50_after_ms"` // of calls from five seconds after the fault
	P99AfterMS   float64 `json:"p99_after_ms"`
	TasksPerS    float64 `json:"tasks_per_s"` // before
	Lost         int     `json:"lost"`        // acknowledged finishes that are not in the ledger
	Doubled      int     `json:"doubled"`     // tasks of a pass that were counted twice
	Finished     int     `json:"finished"`    // acknowledged finishes that were looked for in the ledger
	SessionsLost int64   `json:"sessions_lost"`
	RSSBytes     int64   `json:"rss_bytes"`      // of the leader, all at work
	RSSIdleBytes int64   `json:"rss_idle_bytes"` // of the leader, all connected and idle
	RSSNoneBytes int64   `json:"rss_none_bytes"` // of the leader before the first trainer
	Processors   int     `json:"processors"`
	Disk         Disk    `json:"disk"`
}

// backAfter is when the second measurement begins.
const backAfter = 5 * time.Second

// tasksFor is the number of tasks in a pass for each trainer. A trainer holds two, so more are always available.
const tasksFor = 4

// Run starts etcd, two masters and the trainers, and makes the leader go once.
func (r *Reconnect) Run(ctx context.Context) (figures ReconnectFigures, err error) {
	figures = ReconnectFigures{Trainers: r.Trainers, Mode: r.Mode, Processors: runtime.NumCPU()}
	if err := openFiles(filesFor(r.Trainers)); err != nil { // the masters' limit is this one too
		return figures, err
	}
	if figures.Disk, err = measureDisk(r.Folder); err != nil {
		return figures, err
	}
	etcd, err := startEtcd(ctx, r.Program, r.Folder, etcdConfig{}, r.Stderr)
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, etcd.close()) }()
	dir, err := os.MkdirTemp(r.Folder, "master-bench-reconnect-")
	if err != nil {
		return figures, err
	}
	defer func() { // the masters' log is worth a look when something went wrong
		switch {
		case err == nil || ctx.Err() != nil:
			os.RemoveAll(dir)
		default:
			err = fmt.Errorf("%w; the masters' log is %s", err, filepath.Join(dir, mastersLog))
		}
	}()
	data, err := r.data(dir)
	if err != nil {
		return figures, err
	}
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{etcd.Endpoint}})
	if err != nil {
		return figures, err
	}
	defer store.Close()
	s := &storm{Reconnect: r, store: store, journal: filepath.Join(dir, "journal"), figures: &figures,
		daemons: daemons{program: r.Program, endpoint: etcd.Endpoint, dir: dir}}
	defer s.kill()
	return figures, s.run(ctx, data)
}

// data writes files with enough tasks for all.
func (r *Reconnect) data(dir string) (names []string, err error) {
	for i := range (tasksFor*r.Trainers + chunksPerFile - 1) / chunksPerFile {
		name := filepath.Join(dir, fmt.Sprintf("part-%04d", i))
		if err := writeRecords(name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// storm is the running job.
type storm struct {
	*Reconnect
	daemons
	store   *etcdstore.Store
	journal string
	figures *ReconnectFigures
	crowd   *child // the trainers
}

func (s *storm) run(ctx context.Context, data []string) (err error) {
	for range failoverMasters {
		if err := s.start(); err != nil {
			return err
		}
	}
	if err := s.awaitLeader(ctx); err != nil {
		return err
	}
	if s.figures.RSSNoneBytes, err = s.resident(ctx); err != nil {
		return err
	}
	s.say("%d trainers join", s.Trainers)
	config := trainersConfig{Endpoint: s.endpoint, N: s.Trainers, Data: data, Protocol: s.Protocol, TaskTime: s.TaskTime, Window: s.Window, Settle: backAfter, Journal: s.journal}
	if s.crowd, err = s.Reconnect.Program.start(roleTrainers, config, s.Stderr); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.crowd.stop()) }()
	if err := s.measure(ctx); err != nil {
		return err
	}
	s.say("reading the ledger")
	return s.audit(ctx)
}

// measure reads the reports of the trainers, and stops the leader.
func (s *storm) measure(ctx context.Context) (err error) {
	f := s.figures
	var joined joinedReply
	if err := s.crowd.receive(ctx, &joined); err != nil {
		return err
	}
	f.JoinSeconds = joined.Seconds
	if f.RSSIdleBytes, err = s.resident(ctx); err != nil {
		return err
	}
	s.say("joined in %.1f s; measuring for %v", joined.Seconds, 2*s.TaskTime+s.Window)
	if err := s.crowd.proceed(); err != nil {
		return err
	}
	var window windowReply
	if err := s.crowd.receive(ctx, &window); err != nil {
		return err
	}
	f.P50BeforeMS, f.P99BeforeMS, f.TasksPerS = window.P50MS, window.P99MS, window.CallsPerS
	if f.RSSBytes, err = s.resident(ctx); err != nil {
		return err
	}
	addr, leader, err := s.leader(ctx) // which is another one than at first, if this machine was too slow for that one
	if err != nil {
		return err
	}
	s.say("the leader goes: %s", s.Mode)
	signal := syscall.SIGKILL
	if s.Mode == Hang {
		signal = syscall.SIGSTOP
	}
	if err := leader.Process.Signal(signal); err != nil {
		return err
	}
	if err := s.crowd.proceedWith(addr); err != nil {
		return err
	}
	var back backReply
	if err := s.crowd.receive(ctx, &back); err != nil {
		return err
	}
	f.BackSeconds, f.BackP50 = back.Seconds, back.MedianSeconds
	s.say("all are back after %.1f s", back.Seconds)
	if err := s.crowd.receive(ctx, &window); err != nil {
		return err
	}
	f.P50AfterMS, f.P99AfterMS = window.P50MS, window.P99MS
	if err := leader.Process.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	s.say("the trainers leave")
	if err := s.crowd.proceed(); err != nil {
		return err
	}
	var over overReply
	if err := s.crowd.receive(ctx, &over); err != nil {
		return err
	}
	f.SessionsLost = over.SessionsLost
	return nil
}

// awaitLeader waits until one master leads and the other master is in the queue for the lock.
func (s *storm) awaitLeader(ctx context.Context) error {
	for {
		queued, _, err := s.store.Prefixed(ctx, "/master/lock/")
		if err != nil {
			return err
		}
		leader, err := s.store.MasterAddr(ctx)
		if err != nil {
			return err
		}
		if leader.Addr != "" && len(queued) >= failoverMasters {
			return nil
		}
		if err := rest(ctx, settleTime/10); err != nil {
			return err
		}
	}
}

// leader waits for a leader: on a busy machine the last term may have ended.
func (s *storm) leader(ctx context.Context) (addr string, cmd *exec.Cmd, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, failoverPatience, fmt.Errorf("no master leads after %v", failoverPatience))
	defer cancel()
	for {
		at, err := s.store.MasterAddr(ctx)
		if err != nil {
			return "", nil, err
		}
		if cmd := s.running[at.Addr]; cmd != nil {
			return at.Addr, cmd, nil
		}
		if at.Addr != "" {
			return "", nil, fmt.Errorf("the leader at %q is none of ours", at.Addr)
		}
		if err := rest(ctx, settleTime/10); err != nil {
			return "", nil, err
		}
	}
}

// resident is the leader's memory.
func (s *storm) resident(ctx context.Context) (int64, error) {
	_, leader, err := s.leader(ctx)
	if err != nil {
		return 0, err
	}
	return residentBytes(leader), nil
}

// audit compares what the trainers know to be finished with the ledger.
func (s *storm) audit(ctx context.Context) error {
	counted := map[finished]int{}
	for ev, err := range LedgerEvents(ctx, s.store) {
		if err != nil {
			return err
		}
		if ev.Kind == taskqueue.EventFinished {
			counted[finished{ev.Pass, ev.Position}]++
		}
	}
	for _, n := range counted {
		if n > 1 {
			s.figures.Doubled++
		}
	}
	file, err := os.Open(s.journal)
	if err != nil {
		return err
	}
	defer file.Close()
	for lines := json.NewDecoder(bufio.NewReader(file)); ; {
		var f finished
		switch err := lines.Decode(&f); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the trainers' journal: %w", err)
		}
		s.figures.Finished++
		if counted[f] == 0 {
			s.figures.Lost++
		}
	}
}

// residentBytes is what a process has in memory; 0 where there is no /proc to read it from.
func residentBytes(cmd *exec.Cmd) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", cmd.Process.Pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// Validate names the first field that makes no sense.
func (r *Reconnect) Validate() error {
	switch {
	case r.Trainers < 1:
		return fmt.Errorf("trainers: expected 1 or more, found %d", r.Trainers)
	case !slices.Contains([]string{Kill, Hang}, r.Mode):
		return fmt.Errorf("mode: expected %s or %s, found %q", Kill, Hang, r.Mode)
	case r.TaskTime < time.Millisecond || r.Window < 100*time.Millisecond:
		return fmt.Errorf("task-time, window: expected at least 1ms and 100ms, found %v and %v", r.TaskTime, r.Window)
	}
	return nil
}
