package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/internal/procgroup"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/trainer/rendezvous"
)

// Agent runs a command for each generation.
type Agent struct {
	Client      *rendezvous.Client
	Command     []string
	MaxRestarts int           // own failures of the command, beyond which the agent gives up
	Grace       time.Duration // from SIGTERM to SIGKILL
	Servers     []string      // of TF_CONFIG
	Stop        func() syscall.Signal
	Stdout      io.Writer
	Stderr      io.Writer
	Log         *logrus.Entry

	reports sync.WaitGroup // reports in progress
}

// ExitError is the end of a command that is not started again.
type ExitError struct {
	Code   int // as a shell reports it
	Reason string
}

func (e *ExitError) Error() string { return e.Reason }

// defaultNCCL ends a process whose NCCL fails, as torchrun does: without it, the process waits for a peer that has ended. A user's value comes later
// in the environment, and takes precedence.
const defaultNCCL = "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"

// leaveTimeout bounds the last call of an agent.
const leaveTimeout = 5 * time.Second

// run is the processes of one generation.
type run struct {
	generation uint64
	cancel     context.CancelFunc
	done       chan struct{} // closes when all processes have ended
	err        error         // of the first process that failed, after done
	ended      bool          // done was seen
}

// Run takes part until the ring is closed, ctx ends, or the command has failed too often. It returns an [ExitError] if the command failed for
// good.
func (a *Agent) Run(ctx context.Context) error {
	_, changed := a.Client.Update() // before Run: its first update closes the channel
	attending, leaveRing := context.WithCancel(context.WithoutCancel(ctx))
	ringDone, attended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(attended)
		ringDone <- a.Client.Run(attending)
	}()
	defer func() {
		leaveRing()
		a.reports.Wait()
		<-attended
	}()
	var current *run
	defer func() { a.stop(current) }()
	failures := 0
	charged := uint64(0) // generation whose failure was counted
	for {
		var done <-chan struct{}
		if current != nil && !current.ended {
			done = current.done
		}
		select {
		case <-ctx.Done():
			a.leave(current, "stopped by a signal")
			return context.Cause(ctx)
		case err := <-ringDone:
			return a.closed(ctx, current, err)
		case <-done:
			current.ended = true
			a.report(attending, current)
			continue
		case <-changed:
		}
		var u *pb.RingUpdate
		u, changed = a.Client.Update()
		g := u.GetGeneration()
		//guard:own-failures-limited
		if of := failedGeneration(g); g.GetFailed() == a.Client.Member.Id && of > charged && current != nil && current.generation == of && current.ended && current.err != nil {
			charged = of
			if failures++; failures > a.MaxRestarts {
				_ = a.leaveOnly("the command failed too often") // the end of the connection removes the member too
				return exitOf(current.err, fmt.Sprintf("the command failed %d times, more than --max-restarts %d: %v", failures, a.MaxRestarts, current.err))
			}
		}
		switch u.GetState() {
		case pb.RingState_RING_STATE_MEMBER:
			if current != nil && current.generation == g.GetNumber() {
				continue
			}
			//guard:former-command-ends-first
			a.stop(current)
			var err error
			if current, err = a.start(ctx, g); err != nil {
				_ = a.leaveOnly(err.Error())
				return err
			}
		case pb.RingState_RING_STATE_WAITING, pb.RingState_RING_STATE_PARKED:
			//guard:agent-forgets-stopped-command
			if current != nil && !current.isDone() {
				a.stop(current)
				current = nil // its end is no failure
			}
			a.Log.WithFields(logrus.Fields{"reason": u.GetReason(), "state": stateName(u.GetState())}).Info("waiting for the ring")
		}
	}
}

// failedGeneration returns the number of the generation that the failure of a member has ended.
func failedGeneration(g *pb.RingGeneration) uint64 {
	if g.GetEnded() {
		return g.GetNumber()
	}
	return max(g.GetNumber(), 1) - 1
}

func stateName(s pb.RingState) string {
	if s == pb.RingState_RING_STATE_PARKED {
		return "parked"
	}
	return "waiting"
}

// closed ends the agent when the ring is closed, or when the member cannot take part. A command that runs may end.
func (a *Agent) closed(ctx context.Context, current *run, err error) error {
	if err != nil && !errors.Is(err, io.EOF) { // the job has ended
		return fmt.Errorf("join the ring: %w", err)
	}
	if current == nil {
		u, _ := a.Client.Update()
		a.Log.WithField("reason", u.GetReason()).Info("ring closed, while no command ran")
		return nil
	}
	//guard:closed-ring-lets-command-end
	select {
	case <-current.done:
	case <-ctx.Done():
		a.stop(current)
		return context.Cause(ctx)
	}
	if current.err != nil {
		return exitOf(current.err, fmt.Sprintf("the command failed, and the ring is closed: %v", current.err))
	}
	return nil
}

// exitOf returns the error of a command that is not started again.
func exitOf(err error, reason string) error {
	code := 1
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		if code = e.ExitCode(); code < 0 {
			code = 1
			if s, ok := e.Sys().(syscall.WaitStatus); ok && s.Signaled() {
				code = 128 + int(s.Signal())
			}
		}
	}
	return &ExitError{code, reason}
}

// start starts the processes of a generation.
func (a *Agent) start(ctx context.Context, g *pb.RingGeneration) (*run, error) {
	self := slices.IndexFunc(g.Members, func(m *pb.RingMember) bool { return m.Id == a.Client.Member.Id })
	if self < 0 {
		return nil, fmt.Errorf("generation %d: expected member %s in it, found %d others", g.Number, a.Client.Member.Id, len(g.Members))
	}
	job, _ := a.Client.JobOf()
	p := place{g, self, job, a.MaxRestarts, a.Servers, a.Client.Horovod()}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &run{generation: g.Number, cancel: cancel, done: make(chan struct{})}
	var processes sync.WaitGroup
	var mu sync.Mutex
	for i := range int(g.Members[self].Processes) {
		env, err := p.environment(i)
		if err != nil {
			cancel()
			processes.Wait()
			return nil, err
		}
		cmd := exec.Command(a.Command[0], a.Command[1:]...)
		cmd.Env = append(append([]string{defaultNCCL}, os.Environ()...), env...)
		cmd.Stdout, cmd.Stderr = a.Stdout, a.Stderr
		processes.Go(func() {
			if _, err := (procgroup.Child{Cmd: cmd, Stop: a.Stop, Grace: a.Grace}).Run(running); err != nil {
				mu.Lock()
				r.err = cmp.Or(r.err, err)
				mu.Unlock()
				cancel() // the others of this member
			}
		})
	}
	a.Log.WithFields(logrus.Fields{"generation": g.Number, "rank": self, "members": len(g.Members), "reason": g.Reason}).Info("command started")
	go func() {
		processes.Wait()
		cancel()
		close(r.done)
	}()
	return r, nil
}

// isDone reports whether all processes have ended.
func (r *run) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// stop ends the processes of a run, and waits for them.
func (a *Agent) stop(r *run) {
	if r != nil {
		r.cancel()
		<-r.done
	}
}

// report reports the end of a run.
func (a *Agent) report(ctx context.Context, r *run) {
	outcome, reason := pb.RingOutcome_RING_OUTCOME_COMPLETED, ""
	line := a.Log.WithField("generation", r.generation)
	if r.err != nil {
		outcome, reason = pb.RingOutcome_RING_OUTCOME_FAILED, r.err.Error()
		line.WithError(r.err).Warn("command failed")
	} else {
		line.Info("command completed, waiting for the other members")
	}
	a.reports.Go(func() {
		// An error means that another generation is current, or that Client.Run returns one too.
		_ = a.Client.Report(ctx, r.generation, outcome, "", reason)
	})
}

// leave leaves the ring while the processes end.
func (a *Agent) leave(r *run, reason string) {
	if r != nil {
		r.cancel()
	}
	if err := a.leaveOnly(reason); err != nil {
		a.Log.WithError(err).Warn("the master does not know that this member has left: it is lost after its connection has ended")
	}
	a.stop(r)
}

func (a *Agent) leaveOnly(reason string) error {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	return a.Client.Leave(ctx, reason)
}
