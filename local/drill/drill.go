package drill

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// The drills.
const (
	KillLeader  = "kill-leader"  // SIGKILL
	PauseLeader = "pause-leader" // SIGSTOP, and SIGCONT when another master leads
	KillTrainer = "kill-trainer" // SIGKILL
	Partition   = "partition"    // no data between the leader and etcd until another master leads
	SlowStore   = "slow-store"   // data between masters and etcd is delayed
)

// Drill is one fault for a running job.
type Drill struct {
	Kind    string
	Store   *etcdstore.Store // etcd of the job, without a proxy
	Scene   *Scene           // nil: there is none
	PID     int              // of the victim; 0: found
	Trainer string           // of KillTrainer; empty: a trainer that holds a task
	For     time.Duration    // duration of SlowStore; maximum duration of PauseLeader and Partition
	Delay   time.Duration    // of SlowStore, in each direction
	// Patience limits the wait for the job to continue, and the wait for tasks that were held at the fault to be counted.
	Patience time.Duration
	Ledger   Ledger
	// Verify verifies each pass by the ledger, and returns the differences.
	Verify   func(ctx context.Context) ([]taskqueue.PassReport, error)
	Progress func(now string) // may be nil

	states  <-chan store.Version
	last    taskqueue.Snapshot
	gap     gap
	term    int64     // term of the victim; 0: before the fault
	took    time.Time // time of the first commit of a later term
	tracker *tracker
}

// maxState bounds the decoded state.
const maxState = 64 << 20

// Intervals of polling for the ledger, and for the effect of a signal.
const lookEvery = 200 * time.Millisecond

// gap is the longest time between two commits.
type gap struct {
	since   time.Time // time of the last commit; zero: no measurement
	longest time.Duration
}

func (g *gap) commit(now time.Time) {
	if !g.since.IsZero() {
		g.longest = max(g.longest, now.Sub(g.since))
		g.since = now
	}
}

// Run injects the fault, undoes it, and returns a report. The job must be running. If the job lost a task, the report has it, and
// the error is nil.
func (d *Drill) Run(ctx context.Context) (report *Report, err error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	d.states, d.tracker = d.Store.WatchState(watching), newTracker()
	if err := d.awaitWork(ctx); err != nil {
		return nil, err
	}
	strike, err := d.prepare(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.tracker.follow(ctx, d.Ledger, &d.last); err != nil {
		return nil, err
	}
	d.tracker.mark(strike.trainer)
	report = &Report{Drill: d.Kind, Victim: strike.victim, Pending: d.tracker.pending}
	if err := d.hurt(ctx, strike, report); err != nil {
		return nil, err
	}
	d.say("waiting until all tasks that trainers held are counted")
	if err := d.awaitCounted(ctx); err != nil {
		return nil, err
	}
	report.StoodStill = d.gap.longest.Seconds()
	report.Resent = append([]Resent{}, d.tracker.resent...)
	return report, d.prove(ctx, report)
}

func (d *Drill) say(format string, args ...any) {
	if d.Progress != nil {
		d.Progress(fmt.Sprintf(format, args...))
	}
}

// hurt injects the fault, waits until the job continues, and undoes the fault in any case.
func (d *Drill) hurt(ctx context.Context, s strike, report *Report) (err error) {
	d.say("%s: %s", d.Kind, s.victim)
	began := time.Now()
	d.term = d.last.LockRevision
	d.gap = gap{since: began}
	undo := func() error {
		if s.undo == nil {
			return nil
		}
		// also if the drill is interrupted
		healing, cancel := context.WithTimeout(context.WithoutCancel(ctx), controlTimeout)
		defer cancel()
		err := s.undo(healing)
		s.undo, report.Lasted = nil, time.Since(began).Seconds()
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	if err := s.do(ctx); err != nil {
		return err
	}
	if s.undo != nil {
		if err := d.outlast(ctx, s); err != nil {
			return err
		}
		if err := undo(); err != nil {
			return err
		}
	}
	return d.goesOn(ctx, s, report, began)
}

// strike is a prepared fault.
type strike struct {
	victim  Victim
	leader  bool   // the fault ends when another master leads
	gone    bool   // another master must lead
	trainer string // the trainer that is killed
	do      func(ctx context.Context) error
	undo    func(ctx context.Context) error // nil: the fault cannot be undone
}

// prepare finds the victim.
func (d *Drill) prepare(ctx context.Context) (s strike, err error) {
	leader, err := d.Store.MasterAddr(ctx)
	if err != nil {
		return s, err
	}
	if leader.Addr == "" {
		return s, errors.New("no master leads the job now")
	}
	switch d.Kind {
	case KillLeader, PauseLeader, Partition:
		p, err := d.findLeader(leader.Addr)
		if err != nil {
			return s, fmt.Errorf("find the leader: %w", err)
		}
		s.leader, s.victim = true, Victim{p.Name, p.PID, leader.Addr, leader.Term}
		switch d.Kind {
		case KillLeader:
			s.do, s.gone = signaller(p, syscall.SIGKILL), true
		case PauseLeader:
			s.do, s.undo = signaller(p, syscall.SIGSTOP), signaller(p, syscall.SIGCONT)
		case Partition:
			s.do, s.undo = d.proxies(p.Name, State{Cut: true}), d.proxies(p.Name, State{})
		}
	case KillTrainer:
		p, err := d.findTrainer(ctx)
		if err != nil {
			return s, fmt.Errorf("find a trainer: %w", err)
		}
		s.victim, s.trainer, s.do = Victim{Process: p.Name, PID: p.PID}, p.Name, signaller(p, syscall.SIGKILL)
	case SlowStore:
		s.victim = Victim{Process: fmt.Sprintf("etcd, delayed by %v in each direction", d.Delay)}
		s.do, s.undo = d.proxies("", State{DelayMS: d.Delay.Milliseconds()}), d.proxies("", State{})
	default:
		return s, fmt.Errorf("no such drill: %q", d.Kind)
	}
	return s, nil
}

func (d *Drill) proxies(name string, state State) func(context.Context) error {
	return func(ctx context.Context) error { return d.Scene.setProxy(ctx, name, state) }
}

// signaller signals a process, unless another process has its id.
func signaller(p Process, s syscall.Signal) func(context.Context) error {
	return func(context.Context) error {
		if !p.lives() {
			return fmt.Errorf("%s (process %d) has ended", p.Name, p.PID)
		}
		if err := syscall.Kill(p.PID, s); err != nil {
			return fmt.Errorf("signal %s (process %d): %w", p.Name, p.PID, err)
		}
		return nil
	}
}

// findLeader finds the process of the leader.
func (d *Drill) findLeader(addr string) (Process, error) {
	if d.PID != 0 {
		return named("master", d.PID)
	}
	p, err := listener(addr)
	if err != nil {
		return Process{}, err
	}
	p.Name = d.nameOf(p)
	return p, nil
}

// nameOf returns the name of a process in the scene.
func (d *Drill) nameOf(p Process) string {
	if d.Scene != nil {
		for _, known := range d.Scene.Processes {
			if known.PID == p.PID && known.Started == p.Started {
				return known.Name
			}
		}
	}
	return p.Name
}

func named(name string, pid int) (Process, error) {
	started, ok := startTime(pid)
	if !ok {
		return Process{}, fmt.Errorf("no process %d runs here", pid)
	}
	return Process{Name: name, PID: pid, Started: started}, nil
}

// findTrainer finds the given trainer, or waits for a trainer that holds a task.
func (d *Drill) findTrainer(ctx context.Context) (Process, error) {
	switch {
	case d.PID != 0:
		return named("trainer", d.PID)
	case d.Scene == nil:
		return Process{}, errors.New("trainer: expected a `master run`, whose trainers are known: name the process with --pid")
	case d.Trainer != "":
		return d.Scene.process(d.Trainer)
	}
	ctx, cancel := context.WithTimeout(ctx, d.Patience)
	defer cancel()
	for {
		if err := d.tracker.follow(ctx, d.Ledger, &d.last); err != nil {
			return Process{}, err
		}
		for _, p := range d.Scene.Processes {
			if p.lives() && d.tracker.holds(p.Name) > 0 {
				return p, nil
			}
		}
		if err := d.look(ctx); err != nil {
			return Process{}, fmt.Errorf("wait for a trainer that holds a task: %w", err)
		}
	}
}
