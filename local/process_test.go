package local

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trainmaster/internal/tcpproxy"
)

func logOf(t *testing.T, p *process) string {
	t.Helper()
	data, err := os.ReadFile(p.logPath)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A process that exits with 0 has completed. A process with a permanent error is not restarted, and
// the error says where its log is.
func TestExitCodes(t *testing.T) {
	for code, runsAgain := range map[string]bool{"0": false, "1": false, "2": false, "3": true} {
		t.Run(code, func(t *testing.T) {
			p := runs(t, "exit", code)
			err := p.run(t.Context())
			starts := strings.Count(logOf(t, p), "leaving with "+code)
			switch {
			case code == "0" && (err != nil || starts != 1):
				t.Errorf("started %d times, %v", starts, err)
			case code != "0" && (err == nil || !strings.Contains(err.Error(), "exit status "+code) || !strings.Contains(err.Error(), "see "+p.logPath)):
				t.Errorf("the error is %v", err)
			case runsAgain && (starts != maxRestarts+1 || p.restarts.Load() != maxRestarts):
				t.Errorf("started %d times, %d restarts, want %d", starts, p.restarts.Load(), maxRestarts)
			case !runsAgain && (starts != 1 || p.restarts.Load() != 0):
				t.Errorf("started %d times, %d restarts", starts, p.restarts.Load())
			}
		})
	}
}

// A child whose exit code says that it has done its work is done.
func TestProcessWithEndCodeIsNotRestarted(t *testing.T) {
	p := runs(t, "exit", strconv.Itoa(ExitSetAside))
	p.endCodes = []int{ExitSetAside}
	if err := p.run(t.Context()); err != nil || p.restarts.Load() != 0 {
		t.Errorf("%d restarts, %v", p.restarts.Load(), err)
	}
}

// A killed process is restarted until it stays, after pauses that double up to a limit.
func TestRestarts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "starts")
	p := runs(t, "dies", file, "3")
	p.restartPause = 200 * time.Millisecond
	began := time.Now()
	if err := p.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(noted(file)); n != 4 || p.restarts.Load() != 3 {
		t.Errorf("started %d times, %d restarts, want 4 and 3", n, p.restarts.Load())
	}
	if took, least := time.Since(began), (200+400+800)*time.Millisecond; took < least {
		t.Errorf("three restarts took %v, want pauses of %v at least", took, least)
	}
	if p.pid.Load() != 0 {
		t.Error("it has a pid after its end")
	}
}

// A pause ends with the run.
func TestStoppedWhileItPauses(t *testing.T) {
	p := runs(t, "exit", "3")
	p.restartPause = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.run(ctx) }()
	await(t, "it waits to be started again", func() bool { return p.restarts.Load() == 1 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestProgramThatIsNotThere(t *testing.T) {
	p := runs(t)
	p.binary = filepath.Join(t.TempDir(), "nothing")
	if err := p.once(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("found %v", err)
	}
}

func TestCommandThatCannotBeExecutedIsTriedOnce(t *testing.T) {
	for name, content := range map[string]string{"no program": "no program\n", "missing interpreter": "#!/nowhere/interpreter\n"} {
		t.Run(name, func(t *testing.T) {
			p := runs(t)
			p.binary = filepath.Join(t.TempDir(), "command")
			if err := os.WriteFile(p.binary, []byte(content), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := p.run(t.Context()); !errors.Is(err, errNotExecutable) || p.restarts.Load() != 0 {
				t.Errorf("%d restarts, %v", p.restarts.Load(), err)
			}
		})
	}
	t.Run("missing directory", func(t *testing.T) {
		p := runs(t, "exit", "0")
		p.dir = filepath.Join(t.TempDir(), "gone")
		if err := p.run(t.Context()); err == nil || !strings.Contains(err.Error(), p.dir) || p.restarts.Load() != 0 {
			t.Errorf("%d restarts, %v", p.restarts.Load(), err)
		}
	})
}

// A resumed run finds relative paths among the arguments of its command.
func TestResumedTrainerRunsInFolderOfRun(t *testing.T) {
	run, folder := t.TempDir(), t.TempDir()
	for _, dir := range []string{"etcd", "logs", "data"} {
		if err := os.Mkdir(filepath.Join(run, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	proxy, err := tcpproxy.New("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	config := Config{Dir: run, Dataset: "digits", Command: []string{"/bin/sh", "trainer.sh"}, Trainers: 1, Log: silent()}
	t.Chdir(folder)
	if err := os.WriteFile("trainer.sh", []byte("pwd; echo $PWD"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&Job{config: config}).begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Chdir(run)
	config.Resume = true
	resumed := &Job{config: config, gate: &gate{proxy: proxy}}
	if err := resumed.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	resumed.define()
	trainer := resumed.trainers[0]
	if err := trainer.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Fields(logOf(t, trainer)) {
		if found, err := filepath.EvalSymlinks(line); err != nil || found != folder {
			t.Errorf("the trainer ran in %q (%v), want %q", line, err, folder)
		}
	}
}

// A child has the environment of this process, except the settings of master run.
func TestEnvironment(t *testing.T) {
	t.Setenv("TRAINMASTER_PASSES", "7")
	t.Setenv("TZ", "UTC")
	p := runs(t, "environment")
	if err := p.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(logOf(t, p), "\n")
	if !slices.Contains(lines, "TZ=UTC") || slices.Contains(lines, "TRAINMASTER_PASSES=7") {
		t.Errorf("the child's environment is %q", lines)
	}
}

// At the end of a run a process gets SIGTERM, and SIGKILL if it does not exit.
func TestStop(t *testing.T) {
	stop := func(t *testing.T, p *process, file string) (took time.Duration) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.run(ctx) }()
		await(t, "it is up", func() bool { return len(noted(file)) == 1 })
		pid := int(p.pid.Load())
		cancel()
		began := time.Now()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is still there: %v", pid, err)
		}
		return time.Since(began)
	}
	t.Run("in order", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "notes")
		stop(t, runs(t, "stays", file, "it"), file)
		if found := noted(file); !slices.Equal(found, []string{"it_up", "it_terminated"}) {
			t.Errorf("it noted %q", found)
		}
	})
	t.Run("by force", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "notes")
		p := runs(t, "stubborn", file)
		p.stopTimeout = 100 * time.Millisecond
		if took := stop(t, p, file); took < p.stopTimeout {
			t.Errorf("it was killed after %v, want %v at least", took, p.stopTimeout)
		}
	})
}

// However this process ends, its children do too.
func TestChildrenDieWithTheirParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		if os.Getenv("REQUIRE") == "all" {
			t.Fatal("only Linux ends a child with its parent")
		}
		t.Skip("only Linux ends a child with its parent")
	}
	file := filepath.Join(t.TempDir(), "notes")
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(binary, "child", "parent", file)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the child is up", func() bool { return len(noted(file)) == 1 })
	pid := number(strings.TrimPrefix(noted(file)[0], "up_"))
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the child: %v", err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // says that it was killed
	await(t, "the child is gone", func() bool { return gone(pid) })
}

// gone reports whether a process has ended. Without a waiting parent, it remains as a zombie.
func gone(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// The last words of a usage error are its reason, not where the help is.
func TestLastWordsAreTheReason(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for log, want := range map[string]string{
		"":                         "",
		"starting\nno such file\n": ": no such file",
		"starting\nmaster trainer: --rank \"x\": expected a number\nSee 'master trainer --help'.\n": ": master trainer: --rank \"x\": expected a number",
		"See 'master trainer --help'.\n": ": See 'master trainer --help'.",
		"\x1b[31mred\x1b[0m\r\n":         `: \x1b[31mred\x1b[0m`,
		strings.Repeat("x", 4000):        ": " + strings.Repeat("x", maxLineBytes) + "...",
	} {
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastWords(path); got != want {
			t.Errorf("of %q: found %q, expected %q", log, got, want)
		}
	}
}
