package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is the time limit of a condition, far above all normal durations.
const patience = 4 * time.Minute

// pollEvery is the pause between two checks of a condition.
const pollEvery = 20 * time.Millisecond

// eventually waits until condition holds, and fails the test after patience. saw describes the observed state.
func eventually(t testing.TB, what string, condition func() (ok bool, saw string)) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		ok, saw := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: condition not met within %v; last seen: %s", what, patience, saw)
		}
		// Conditions of other processes can only be polled.
		time.Sleep(pollEvery)
	}
}

// process is a running process of the program under test.
type process struct {
	t    testing.TB
	name string
	pid  int
	gone chan struct{} // closed when it has ended
	exit error         // result of Wait; valid after gone is closed
	path string        // log with standard output and error
}

// start starts the program. The cleanup of the test kills it.
func start(t testing.TB, name, dir string, args ...string) *process {
	t.Helper()
	return startBy(t, nil, name, dir, args...)
}

// startBy starts the program with a command that replaces itself with it, such as `ip netns exec NAME`.
func startBy(t testing.TB, by []string, name, dir string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, gone: make(chan struct{}), path: filepath.Join(t.TempDir(), name+".log")}
	log, err := os.Create(p.path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(context.Background(), t, dir, args...)
	if len(by) > 0 {
		if cmd.Path, err = exec.LookPath(by[0]); err != nil {
			t.Fatal(err)
		}
		cmd.Args = append(slices.Clone(by), append([]string{program(t)}, args...)...)
	}
	cmd.Stdout, cmd.Stderr = log, log
	started := make(chan error, 1)
	go func() { // the child is killed when the thread that started it ends, so the thread must remain
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = log.Close() // the child has its own descriptor
		started <- err
		if err == nil {
			p.exit = cmd.Wait()
			close(p.gone)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	p.pid = cmd.Process.Pid
	t.Cleanup(p.finish)
	return p
}

// command returns a command of the program. Its environment has no settings of the program, except a port for HTTP.
func command(ctx context.Context, t testing.TB, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, program(t), args...)
	cmd.Dir = dir
	cmd.SysProcAttr = childAttributes()
	cmd.Env = []string{"TRAINMASTER_HTTP=127.0.0.1:0"} // the default is a fixed port
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TRAINMASTER_") && !strings.HasPrefix(v, "POD_IP=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd
}

// finish kills the process and checks its log.
func (p *process) finish() {
	_ = syscall.Kill(p.pid, syscall.SIGCONT)
	p.kill()
	text := p.log()
	if found := fatalText.FindString(text); found != "" {
		p.t.Errorf("%s: found %q in its log", p.name, found)
	}
	if p.t.Failed() {
		p.t.Logf("%s ended with: %v; the end of its log:\n%s", p.name, p.exit, tail(text, 40))
	}
}

// fatalText matches texts that no log may contain.
var fatalText = regexp.MustCompile(`WARNING: DATA RACE|panic: .*|fatal error: .*|an event was dropped`)

func tail(text string, lines int) string {
	all := strings.SplitAfter(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// log returns the output of the process so far.
func (p *process) log() string {
	text, err := os.ReadFile(p.path)
	if err != nil {
		p.t.Errorf("log of %s: %v", p.name, err)
	}
	return string(text)
}

// signal sends a signal to the process, unless it has ended.
func (p *process) signal(s syscall.Signal) {
	select {
	case <-p.gone: // another process may have its id
	default:
		_ = syscall.Kill(p.pid, s)
	}
}

// kill sends SIGKILL and waits until the process has ended.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.gone
}

// wait waits until the process ends, and returns its exit code, or -1 after a signal.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.gone:
	case <-time.After(patience):
		p.t.Fatalf("%s is still running after %v", p.name, patience)
	}
	return exitCode(p.exit)
}

// wantExit waits until the process ends, and fails the test if its exit code differs.
func (p *process) wantExit(code int) {
	p.t.Helper()
	if found := p.wait(); found != code {
		p.t.Fatalf("%s: exit code %d, expected %d (%v)", p.name, found, code, p.exit)
	}
}

// awaitLog waits until the log contains the words.
func (p *process) awaitLog(words string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%s logs %q", p.name, words), func() (bool, string) {
		return strings.Contains(p.log(), words), "the log below"
	})
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}

// outcome is the result of a command.
type outcome struct {
	code           int
	stdout, stderr string
}

// run runs a command to its end.
func run(t testing.TB, dir string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := command(ctx, t, dir, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runtime.LockOSThread() // as in start
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("master %s: still running after %v\n%s", strings.Join(args, " "), patience, stderr.String())
	}
	if found := fatalText.FindString(stderr.String()); found != "" {
		t.Errorf("master %s: found %q in its output:\n%s", strings.Join(args, " "), found, stderr.String())
	}
	return outcome{exitCode(err), stdout.String(), stderr.String()}
}

// wants fails the test unless the exit code is code and standard error contains all words.
func (o outcome) wants(t testing.TB, code int, words ...string) {
	t.Helper()
	var wrong []string
	if o.code != code {
		wrong = append(wrong, fmt.Sprintf("exit code %d, expected %d", o.code, code))
	}
	for _, w := range words {
		if !strings.Contains(o.stderr, w) {
			wrong = append(wrong, fmt.Sprintf("standard error lacks %q", w))
		}
	}
	if len(wrong) > 0 {
		t.Fatalf("%s\nstandard output: %s\nstandard error: %s", strings.Join(wrong, "\n"), o.stdout, o.stderr)
	}
}

// decode decodes the JSON output of the command.
func (o outcome) decode(t testing.TB, v any) {
	t.Helper()
	if err := decodeStrictly(o.stdout, v); err != nil {
		t.Fatalf("expected JSON of a %T: %v\nexit code %d\nstandard output: %s\nstandard error: %s", v, err, o.code, o.stdout, o.stderr)
	}
}
