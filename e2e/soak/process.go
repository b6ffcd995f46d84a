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

// target is what a fault can have for itself until it is over.
type target struct {
	name string
	busy sync.Mutex
}

// process is a program that is started again and again, with one log.
type process struct {
	target
	binary string
	args   []string
	log    string       // path
	died   chan<- error // hears of ends that nobody wanted

	mu  sync.Mutex
	now *life // guarded by mu; nil before the first start
}

// life is one run of a process.
type life struct {
	pid    int
	wanted bool          // its end; guarded by process.mu
	gone   chan struct{} // closed when it has ended
	exit   error         // valid once gone is closed
}

// settingsPrefix begins the environment's settings of the program under test, which gets them as flags alone.
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
		runtime.LockOSThread() // the process ends with the thread that starts it
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = log.Close() // it is the child's now
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

// watch notes how a life ended.
func (p *process) watch(l *life, exit error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.exit = exit
	close(l.gone)
	if l.wanted {
		return
	}
	select {
	case p.died <- fmt.Errorf("%s ended by itself (%v), see %s", p.name, ending(exit), p.log):
	default: // one such end is enough to fail
	}
}

func ending(exit error) string {
	if exit == nil {
		return "exit status 0"
	}
	return exit.Error()
}

// signal sends a signal to the process, unless it has ended. wanted: it may end from now on.
func (p *process) signal(s syscall.Signal, wanted bool) *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.now
	if l == nil {
		return nil
	}
	l.wanted = l.wanted || wanted
	select {
	case <-l.gone: // its number may be another process's by now
	default:
		_ = syscall.Kill(l.pid, s) // it may end in this moment
	}
	return l
}

// kill ends the process as kill -9 does, and waits until it is gone.
func (p *process) kill() {
	if l := p.signal(syscall.SIGKILL, true); l != nil {
		<-l.gone
	}
}

// letEnd allows the process to end by itself.
func (p *process) letEnd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.wanted = true
}

// leavePatience is what a process has to end in order.
const leavePatience = 2 * time.Minute

// leave tells the process to end in order, and expects it to.
func (p *process) leave(ctx context.Context) error {
	p.signal(syscall.SIGTERM, true)
	return p.awaitEnd(ctx, leavePatience)
}

// awaitEnd waits until the process has ended, and expects success.
func (p *process) awaitEnd(ctx context.Context, patience time.Duration) error {
	p.mu.Lock()
	l := p.now
	p.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-l.gone:
		if l.exit != nil {
			return fmt.Errorf("%s: expected it to end with exit status 0, found %w, see %s", p.name, l.exit, p.log)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("%w: %s still runs after %v, see %s", errStuck, p.name, patience, p.log)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lastError is what a command that failed wrote last.
func lastError(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
