package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// target is a process or a proxy. One fault at a time can claim it.
type target struct {
	name string
	busy sync.Mutex
}

// process is a program that is started repeatedly and appends to one log.
type process struct {
	target
	binary string
	args   []string
	log    string       // path
	died   chan<- error // receives unexpected ends

	mu  sync.Mutex
	now *life // guarded by mu; nil before the first start
}

// life is one start of a process.
type life struct {
	pid    int
	wanted bool          // its end is expected; guarded by process.mu
	gone   chan struct{} // closed when it has ended
	exit   error         // valid once gone is closed
}

// settingsPrefix is the prefix of the variables that configure the program under test. They are removed: the program
// receives its settings as flags only.
const settingsPrefix = "TRAINMASTER_"

// start starts the process. It must not be running.
func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command(p.binary, p.args...)
	cmd.Dir = filepath.Dir(p.log)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttributes()
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, settingsPrefix) || strings.HasPrefix(v, "POD_IP=")
	})
	l := &life{gone: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the child is killed when this thread ends
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = log.Close() // the child has its own descriptor
		started <- err
		if err == nil {
			p.watch(l, cmd.Wait())
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l.pid = cmd.Process.Pid
	p.now = l
	return nil
}

// watch records the end of a process.
func (p *process) watch(l *life, exit error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.exit = exit
	close(l.gone)
	if l.wanted {
		return
	}
	select {
	case p.died <- fmt.Errorf("%s: unexpected end (%v), see %s", p.name, ending(exit), p.log):
	default: // one unexpected end is enough to fail
	}
}

func ending(exit error) string {
	if exit == nil {
		return "exit status 0"
	}
	return exit.Error()
}

// signal sends a signal to the process, unless it has ended. If wanted is set, the process may end.
func (p *process) signal(s syscall.Signal, wanted bool) *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.now
	if l == nil {
		return nil
	}
	l.wanted = l.wanted || wanted
	select {
	case <-l.gone: // another process may have its id
	default:
		_ = syscall.Kill(l.pid, s) // the process may have ended
	}
	return l
}

// kill sends SIGKILL and waits until the process has ended.
func (p *process) kill() {
	if l := p.signal(syscall.SIGKILL, true); l != nil {
		<-l.gone
	}
}

// letEnd marks an end of the process as expected.
func (p *process) letEnd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.wanted = true
}

// leavePatience is the time limit of a graceful stop.
const leavePatience = 2 * time.Minute

// leave stops the process gracefully and waits for its end.
func (p *process) leave(ctx context.Context) error {
	p.signal(syscall.SIGTERM, true)
	return p.awaitEnd(ctx, leavePatience)
}

// awaitEnd waits until the process has ended. It returns an error if the exit code is not 0.
func (p *process) awaitEnd(ctx context.Context, patience time.Duration) error {
	p.mu.Lock()
	l := p.now
	p.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-l.gone:
		if l.exit != nil {
			return fmt.Errorf("%s: expected exit status 0, found %w, see %s", p.name, l.exit, p.log)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("%w: %s is still running after %v, see %s", errStuck, p.name, patience, p.log)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lastError adds the error output of a failed command to its error.
func lastError(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
