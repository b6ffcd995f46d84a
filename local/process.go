package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/local/drill"
)

// settingsPrefix is the prefix of settings in the environment. They apply to `master run` and
// not to its children, which get flags.
const settingsPrefix = "TRAINMASTER_"

const (
	maxRestarts  = 20
	restartPause = 100 * time.Millisecond
	pauseDoubles = 5 // times at most
	stopTimeout  = 15 * time.Second
	// A parameter server waits up to 30 s for its last checkpoint set.
	serverStopTimeout = 40 * time.Second
)

// ExitSetAside is the exit code of a master whose job ended without the tasks that are set aside.
const ExitSetAside = 4

// process is a child that is restarted until it exits with code 0 or is stopped.
type process struct {
	name     string
	binary   string
	args     []string
	env      []string // added to the environment
	dir      string   // working directory; "": the directory of this process
	logPath  string
	log      *logrus.Entry
	register *drill.Register // registers the process; nil: not registered

	endCodes []int // exit codes, besides 0, of a child that has completed

	restartPause time.Duration // before the first restart; it doubles
	stopTimeout  time.Duration // from SIGTERM to SIGKILL
	storeFailed  *atomic.Bool  // set if etcd failed: children are then killed immediately; nil: never

	final atomic.Bool // the child is not restarted

	pid      atomic.Int64 // of the running child; 0: none
	restarts atomic.Int64
}

// run restarts the child until it completes. It returns nil if the child exited with 0 or ctx
// ended, and an error if a restart cannot help, or after too many restarts.
func (p *process) run(ctx context.Context) error {
	for n := 0; ; n++ {
		err := p.once(ctx)
		switch {
		//guard:ended-process-not-restarted
		case ctx.Err() != nil, err == nil, slices.Contains(p.endCodes, exitCode(err)):
			return nil
		case p.final.Load():
			p.log.WithError(err).WithField("process", p.name).Warn("trainer failed after the end of the job")
			return nil
		case permanent(err) || n == 0 && errors.Is(err, errNotExecutable) || n == maxRestarts:
			return processError{fmt.Errorf("%s: %w%s; see %s", p.name, err, lastWords(p.logPath), p.logPath)}
		}
		p.restarts.Add(1)
		pause := p.restartPause << min(n, pauseDoubles)
		p.log.WithError(err).WithFields(logrus.Fields{"process": p.name, "pause": pause.String()}).Warn("process died, restarting it")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if p.final.Load() {
			return nil
		}
	}
}

// ErrProcess: a process of a run has failed, and another start of it would fail too.
var ErrProcess = errors.New("a process of the run has failed")

// processError is an [ErrProcess] with the name of the process and the reason.
type processError struct{ error }

func (processError) Is(target error) bool { return target == ErrProcess }

func (e processError) Unwrap() error { return e.error }

// seeHelp matches the last line of a usage error of this program. The line before it has the reason.
var seeHelp = regexp.MustCompile(`^See '.* --help'\.$`)

// errNotExecutable: another start would fail too, unless the program is being replaced during the run.
var errNotExecutable = errors.New("cannot be executed")

// startErrors are the errors of a start that do not depend on the load of the machine.
var startErrors = []error{syscall.ENOEXEC, syscall.ENOENT, syscall.EACCES, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.E2BIG}

// lastWords returns the last line of a log that has a reason, after a colon and as OneLine writes it.
func lastWords(path string) string {
	const most = 2 << 10
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	size, _ := file.Seek(0, io.SeekEnd)
	tail := make([]byte, min(size, most))
	n, _ := file.ReadAt(tail, size-int64(len(tail)))
	lines := strings.Split(strings.TrimSpace(string(tail[:n])), "\n")
	if len(lines) > 1 && seeHelp.MatchString(lines[len(lines)-1]) {
		lines = lines[:len(lines)-1]
	}
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return ": " + OneLine(last)
	}
	return ""
}

// permanent reports exit codes that a restart would repeat: the job failed, wrong usage, or a shell that found no such command.
func permanent(err error) bool {
	code := exitCode(err)
	return slices.Contains([]int{1, 2, 126, 127}, code)
}

// exitCode returns the exit code in an error of once, or -1.
func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}

// once runs the child to its end, with all processes of its group. When ctx ends, the group gets SIGTERM, and after stopTimeout
// SIGKILL. If the child ends before ctx, the rest of the group is killed.
func (p *process) once(ctx context.Context) error {
	file, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := exec.CommandContext(ctx, p.binary, p.args...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, settingsPrefix) })
	cmd.Env = append(cmd.Env, p.env...)
	var deadline atomic.Pointer[time.Time] // for the end of the stopped group
	cmd.Cancel = func() error {
		if p.storeFailed != nil && p.storeFailed.Load() {
			return signalGroup(cmd.Process.Pid, syscall.SIGKILL)
		}
		deadline.Store(new(time.Now().Add(p.stopTimeout)))
		return signalGroup(cmd.Process.Pid, syscall.SIGTERM)
	}
	cmd.WaitDelay = p.stopTimeout
	if cmd.Dir = p.dir; p.dir != "" {
		if _, err := os.Stat(p.dir); err != nil { // the error of Start would name the program instead
			return fmt.Errorf("%w: working directory: %w", errNotExecutable, err)
		}
		cmd.Env = append(cmd.Env, "PWD="+p.dir)
	}
	cmd.SysProcAttr = childAttributes()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		if slices.ContainsFunc(startErrors, func(e error) bool { return errors.Is(err, e) }) {
			return fmt.Errorf("%w: expected a program of this platform, or a script whose first line names an interpreter that exists: %w", errNotExecutable, err)
		}
		return err
	}
	p.pid.Store(int64(cmd.Process.Pid))
	defer p.pid.Store(0)
	groups.Store(cmd.Process.Pid, nil)
	defer func() {
		var until time.Time
		if told := deadline.Load(); told != nil {
			until = *told
		}
		if endGroup(cmd.Process.Pid, until) {
			p.log.WithField("process", p.name).Warn("killed processes that the command left behind")
		}
		groups.Delete(cmd.Process.Pid)
	}()
	if p.register == nil {
		return cmd.Wait()
	}
	noted := p.register.Started(p.name, cmd.Process.Pid)
	err = cmd.Wait()
	noted = errors.Join(noted, p.register.Ended(p.name))
	if noted != nil && !(p.storeFailed != nil && p.storeFailed.Load()) { // after a failure of etcd, that error is reported
		p.log.WithError(noted).WithField("process", p.name).Warn("process not registered: drills cannot find it")
	}
	return err
}
