// Package processes executes the plans of package podmanager as processes on this machine.
//
// [Set.Run] starts the processes of one role, observes their ends, and starts the attempts that follow. The state of the plan is in memory, since no
// process outlives this one. The number of processes is fixed, so a plan has no deletes: all processes stop together.
//
// # Guarantees
//
//   - An index has one process at a time: the next attempt starts when all processes of the group of the last attempt have ended.
//   - Run returns when all processes have ended.
//
// # Failure
//
// A start that fails for lack of resources is repeated without a charge. A program that cannot be executed counts as exit code 126, as in a shell.
package processes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"

	"github.com/sirupsen/logrus"

	"trainmaster/internal/procgroup"
	"trainmaster/master/podmanager"
	"trainmaster/taskqueue"
)

// Process is the program of an index.
type Process struct {
	Name string
	Path string // of the program
	Args []string
	Env  []string // nil: the environment of this process
	Dir  string   // "": the working directory of this process
	Log  string   // path of the file with the output

	Grace     time.Duration // from SIGTERM to SIGKILL
	Completed []int         // exit codes that count as 0
	Temporary []int         // exit codes that count as [podmanager.ExitTemporary]
}

// Set is the processes of one role.
type Set struct {
	Role      podmanager.Role
	Plan      podmanager.Config // its group of the role and NoTasks follow from Processes
	Processes []Process         // by index
	Stop      func() syscall.Signal
	Noted     func(name string, pid int) // is called with the id of a process that has started, and with 0 when it has ended; nil: nothing is called
	Restarts  *atomic.Int64
	Log       *logrus.Entry
}

// ErrFailed is the error of a process that is not started again.
var ErrFailed = errors.New("a process has failed")

// failure is an [ErrFailed] with the name of the process and the reason.
type failure struct{ error }

func (failure) Is(target error) bool { return target == ErrFailed }

// Run runs the processes until all have completed, or ctx ends. A process of which the plan gives up the index ends the others, and is the error, an
// [ErrFailed]. When over closes, processes that end are not started again.
func (s *Set) Run(ctx context.Context, over <-chan struct{}) error {
	config := s.Plan
	config.NoTasks = true
	if g := (podmanager.Group{Count: len(s.Processes), Min: len(s.Processes)}); s.Role == podmanager.Server {
		config.Servers = g
	} else {
		config.Workers = g
	}
	ctx, stop := context.WithCancel(ctx)
	ends, running := make(chan podmanager.Pod), 0
	defer func() {
		for stop(); running > 0; running-- {
			<-ends
		}
	}()
	var state podmanager.State
	pods, ended := map[int]podmanager.Pod{}, false
	for began := time.Now(); ; {
		select {
		case <-over: // first, since the processes end after it
			//guard:nothing-starts-after-the-end
			ended, over = true, nil
		default:
		}
		seen := podmanager.Observed{Pods: slices.Collect(maps.Values(pods)), Over: ended}
		now := taskqueue.Clock(time.Since(began).Milliseconds())
		d := podmanager.Plan(config, state, seen, now)
		state = d.State
		s.report(d, now)
		switch {
		case d.End != nil && d.End.Failed:
			return s.failed(state)
		case d.End != nil, ended && running == 0:
			return nil
		}
		for _, a := range d.Actions { // creates only
			pod := podmanager.Pod{Name: s.Processes[a.Index].Name, Role: a.Role, Index: a.Index, Attempt: a.Attempt, Phase: podmanager.Running}
			pods[a.Index] = pod
			running++
			go func() { ends <- s.run(ctx, pod) }()
		}
		var due <-chan time.Time
		if d.Rest >= 0 {
			due = time.After(d.Rest)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-over:
		case pod := <-ends:
			running--
			pods[pod.Index] = pod
			if _, reason := config.Outcome(pod); ended && reason != "" {
				s.Log.WithFields(logrus.Fields{"process": pod.Name, "reason": reason}).Warn("process failed after the end of the job")
			}
		case <-due:
		}
	}
}

// report logs and counts the relaunches of a decision.
func (s *Set) report(d podmanager.Decision, now taskqueue.Clock) {
	for _, r := range d.Relaunches {
		if r.Done != podmanager.NotDone {
			continue
		}
		s.Restarts.Add(1)
		i := slices.IndexFunc(s.Processes, func(p Process) bool { return p.Name == r.Name })
		pause := d.State.Slot(s.Role, i).After.Sub(now)
		s.Log.WithFields(logrus.Fields{"process": r.Name, "reason": cmp.Or(r.Reason, "exit code 0"), "pause": pause.String()}).Warn("process died, restarting it")
	}
}

// failed returns the error of the first index that is given up.
func (s *Set) failed(state podmanager.State) error {
	i := slices.IndexFunc(state.Slots, func(slot podmanager.Slot) bool { return slot.Done == podmanager.GivenUp })
	slot, attempt := state.Slots[i], ""
	if slot.Attempt > 0 {
		attempt = fmt.Sprintf(", attempt %d", slot.Attempt+1)
	}
	p := s.Processes[slot.Index]
	return failure{fmt.Errorf("%s%s: %s; see %s", p.Name, attempt, slot.Reason, p.Log)}
}

// run runs a process to its end, and returns how it ended.
func (s *Set) run(ctx context.Context, pod podmanager.Pod) podmanager.Pod {
	p, began := s.Processes[pod.Index], time.Now()
	words, err := s.start(ctx, p)
	pod.Phase, pod.Ran = podmanager.Failed, time.Since(began)
	exit, hasRun := errors.AsType[*exec.ExitError](err)
	switch {
	//guard:ended-process-not-restarted
	case err == nil, hasRun && slices.Contains(p.Completed, exit.ExitCode()):
		pod.Exit = &podmanager.Exit{}
	//guard:signal-of-a-process
	case hasRun && exit.ExitCode() < 0:
		pod.Exit = &podmanager.Exit{Code: 128 + int(exit.Sys().(syscall.WaitStatus).Signal())}
	//guard:unreachable-master-of-a-process
	case hasRun && slices.Contains(p.Temporary, exit.ExitCode()):
		pod.Exit = &podmanager.Exit{Code: podmanager.ExitTemporary, Message: words}
	case hasRun:
		pod.Exit = &podmanager.Exit{Code: exit.ExitCode(), Message: words}
	case lasts(err):
		pod.Exit = &podmanager.Exit{Code: 126, Message: err.Error()}
	default: // such as no memory for another process
		pod.Words = err.Error()
	}
	return pod
}

// lasts reports whether the error of a start does not depend on the load of the machine.
func lasts(err error) bool {
	return slices.ContainsFunc([]error{syscall.ENOEXEC, syscall.ENOENT, syscall.EACCES, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.E2BIG},
		func(e error) bool { return errors.Is(err, e) })
}

// start runs a process to the end of its group. words are the end of its output.
func (s *Set) start(ctx context.Context, p Process) (words string, err error) {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return "", fmt.Errorf("log of the process: %w", err)
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, p.Env
	if cmd.Dir = p.Dir; p.Dir != "" {
		if _, err := os.Stat(p.Dir); err != nil { // the error of Start would name the program instead
			return "", fmt.Errorf("working directory: %w", err)
		}
		cmd.Env = append(slices.Clone(p.Env), "PWD="+p.Dir)
	}
	started := false
	child := procgroup.Child{Cmd: cmd, Stop: s.Stop, Grace: p.Grace, Started: func(pid int) {
		started = true
		if s.Noted != nil {
			s.Noted(p.Name, pid)
		}
	}}
	killed, err := child.Run(ctx)
	switch {
	case !started && lasts(err):
		return "", fmt.Errorf("cannot be executed: expected a program of this platform, or a script whose first line names an interpreter that exists: %w", err)
	case !started:
		return "", err
	}
	if killed {
		s.Log.WithField("process", p.Name).Warn("killed processes that the command left behind")
	}
	if s.Noted != nil {
		s.Noted(p.Name, 0)
	}
	return tail(log, begin), err
}

// tail returns the end of a log, at most 2 KiB of the bytes after begin, without control characters.
func tail(log *os.File, begin int64) string {
	const most = 2 << 10
	size, _ := log.Seek(0, io.SeekEnd)
	text := make([]byte, min(size-begin, most))
	n, _ := log.ReadAt(text, size-int64(len(text)))
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, string(text[:n]))
}
