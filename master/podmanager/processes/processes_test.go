package processes_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"trainmaster/master/podmanager"
	"trainmaster/master/podmanager/processes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a set of one shell script, which appends a line to its file at each start.
type bench struct {
	*processes.Set
	file string
}

// script returns a set of a program. In the script, $1 is the file and n the number of its start.
func script(t *testing.T, text string) bench {
	t.Helper()
	dir := t.TempDir()
	log := logrus.New()
	log.SetOutput(io.Discard)
	file := filepath.Join(dir, "starts")
	return bench{file: file, Set: &processes.Set{
		Role: podmanager.Worker,
		Plan: podmanager.Config{FirstPause: time.Millisecond},
		Processes: []processes.Process{{
			Name: "trainer-0", Path: "/bin/sh", Args: []string{"-c", `echo start >> $1; n=$(wc -l < $1); ` + text, "sh", file},
			Log: filepath.Join(dir, "log"), Grace: time.Minute,
		}},
		Stop:     func() syscall.Signal { return syscall.SIGTERM },
		Restarts: &atomic.Int64{},
		Log:      logrus.NewEntry(log),
	}}
}

func (b bench) starts() int {
	text, _ := os.ReadFile(b.file)
	return strings.Count(string(text), "start\n")
}

func (b bench) want(t *testing.T, starts int) {
	t.Helper()
	if n, restarts := b.starts(), int(b.Restarts.Load()); n != starts || restarts != max(0, starts-1) {
		t.Errorf("found %d starts and %d restarts, expected %d starts", n, restarts, starts)
	}
}

func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, processes.ErrFailed) {
		t.Fatalf("found %v, expected a failure", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("found %q, expected %q in it", err, w)
		}
	}
}

// F296: a killed process is started again without a charge, after pauses that double.
func TestKilledProcessIsStartedAgain(t *testing.T) {
	b := script(t, `[ $n -gt 3 ] || kill -9 $$`)
	b.Plan.FirstPause, b.Plan.FailFast = 200*time.Millisecond, time.Hour
	began := time.Now()
	if err := b.Run(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	b.want(t, 4)
	if took, least := time.Since(began), (200+400+800)*time.Millisecond; took < least {
		t.Errorf("three restarts took %v, expected pauses of %v at least", took, least)
	}
}

// F297: a program that fails at its first start ends the set immediately, and the error has the reason and the log.
func TestProgramThatDoesNotWorkFailsImmediately(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		words  string
	}{
		"failure":      {`printf '\033[31mno data\033[0m\n'; exit 1`, "trainer-0: exit code 1: [31mno data[0m; see "},
		"other code":   {`echo invalid syntax; exit 7`, "trainer-0: exit code 7: invalid syntax; see "},
		"no command":   {`no-such-program-here`, "trainer-0: exit code 127: "},
		"usage":        {`echo "--data: expected a file"; exit 64`, "trainer-0: exit code 64 (usage): --data: expected a file; see "},
		"segmentation": {`kill -SEGV $$`, "trainer-0: exit code 139"},
	} {
		t.Run(name, func(t *testing.T) {
			b := script(t, c.script)
			b.Plan.MaxRelaunch, b.Plan.FailFast = 3, time.Hour
			wantError(t, b.Run(t.Context(), nil), c.words, b.Processes[0].Log)
			b.want(t, 1)
		})
	}
}

// F297: also a program that cannot be executed.
func TestProgramThatCannotBeExecutedFailsImmediately(t *testing.T) {
	for name, content := range map[string]string{"no program": "no program\n", "missing interpreter": "#!/nowhere/interpreter\n"} {
		t.Run(name, func(t *testing.T) {
			b := script(t, "")
			b.Plan.MaxRelaunch, b.Plan.FailFast = 3, time.Hour
			b.Processes[0].Path = filepath.Join(t.TempDir(), "command")
			if err := os.WriteFile(b.Processes[0].Path, []byte(content), 0o700); err != nil {
				t.Fatal(err)
			}
			wantError(t, b.Run(t.Context(), nil), "cannot be executed: expected a program", b.Processes[0].Path)
			b.want(t, 0)
		})
	}
	t.Run("missing directory", func(t *testing.T) {
		b := script(t, "")
		b.Plan.MaxRelaunch, b.Plan.FailFast = 3, time.Hour
		b.Processes[0].Dir = filepath.Join(t.TempDir(), "gone")
		wantError(t, b.Run(t.Context(), nil), "working directory", b.Processes[0].Dir)
		b.want(t, 0)
	})
}

// F298: later failures are charged, and the error has the last reason. A first attempt that fails later is started again.
func TestLaterFailuresAreCharged(t *testing.T) {
	b := script(t, `[ $n -gt 1 ] || kill -9 $$; echo "failure $n"; exit 1`)
	b.Plan.MaxRelaunch, b.Plan.FailFast = 2, time.Hour
	wantError(t, b.Run(t.Context(), nil), "trainer-0, attempt 4: exit code 1: failure 4; see ")
	b.want(t, 4) // the killed process, a failure and two relaunches

	b = script(t, `[ $n -gt 1 ] || exit 1`)
	b.Plan.MaxRelaunch, b.Plan.FailFast = 1, time.Nanosecond
	if err := b.Run(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	b.want(t, 2)

	b = script(t, `[ $n -gt 1 ] || kill -9 $$; exit 64`)
	b.Plan.MaxRelaunch = 2
	wantError(t, b.Run(t.Context(), nil), "trainer-0, attempt 2: exit code 64 (usage); see ")
	b.want(t, 2)
}

// The words of an end are of its own attempt.
func TestWordsOfAnEarlierAttemptAreNotRepeated(t *testing.T) {
	b := script(t, `[ $n -gt 1 ] || { echo early; kill -9 $$; }; exit 1`)
	wantError(t, b.Run(t.Context(), nil), "trainer-0, attempt 2: exit code 1; see ")
}

// F298: a process that cannot reach etcd or the master is started again, also if it is the first attempt.
func TestUnreachableMasterIsNotCharged(t *testing.T) {
	b := script(t, `[ $n -gt 3 ] || exit 3`)
	b.Processes[0].Temporary, b.Plan.FailFast = []int{3}, time.Hour
	if err := b.Run(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	b.want(t, 4)
	b = script(t, `exit 3`)
	wantError(t, b.Run(t.Context(), nil), "exit code 3")
	b.want(t, 1)
}

// A child whose exit code says that it has done its work is done.
func TestProcessWithEndCodeIsNotRestarted(t *testing.T) {
	b := script(t, `exit 4`)
	b.Processes[0].Completed = []int{4}
	if err := b.Run(t.Context(), nil); err != nil {
		t.Error(err)
	}
	b.want(t, 1)
}

// F296: a parameter server that ends in a running job is started again, also after exit code 0.
func TestServerThatLeavesIsStartedAgain(t *testing.T) {
	b := script(t, `[ $n -gt 1 ] || exit 0; while :; do sleep 0.01; done`)
	b.Role = podmanager.Server
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for b.starts() < 2 {
			time.Sleep(time.Millisecond) // interval between checks
		}
		cancel()
	}()
	if err := b.Run(ctx, nil); err != nil {
		t.Error(err)
	}
	b.want(t, 2)
}

// A pause ends with the run.
func TestStoppedWhileItPauses(t *testing.T) {
	b := script(t, `kill -9 $$`)
	b.Plan.FirstPause = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for b.Restarts.Load() == 0 {
			time.Sleep(time.Millisecond) // interval between checks
		}
		cancel()
	}()
	if err := b.Run(ctx, nil); err != nil {
		t.Error(err)
	}
}

// After the end of the job, nothing is started again, and processes that run may end.
func TestNothingStartsAfterTheEndOfTheJob(t *testing.T) {
	b := script(t, `until [ -e $1.go ]; do sleep 0.01; done; exit 1`)
	over := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- b.Run(t.Context(), over) }()
	for b.starts() == 0 {
		time.Sleep(time.Millisecond) // interval between checks
	}
	close(over)
	if err := os.WriteFile(b.file+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	b.want(t, 1)
}

// One process that fails stops the others, which are noted as ended.
func TestFailedProcessStopsTheOtherProcesses(t *testing.T) {
	b := script(t, `until [ -e $1.up ]; do sleep 0.01; done; exit 1`)
	other := b.Processes[0]
	other.Name, other.Args = "trainer-1", []string{"-c", `trap 'echo terminated; exit 0' TERM; : > $1.up; while :; do sleep 0.01; done`, "sh", b.file}
	other.Log += "-1"
	b.Processes = append(b.Processes, other)
	var mu sync.Mutex
	running := map[string]int{}
	b.Noted = func(name string, pid int) {
		mu.Lock()
		defer mu.Unlock()
		if running[name] = pid; pid == 0 {
			delete(running, name)
		}
	}
	wantError(t, b.Run(t.Context(), nil), "trainer-0: exit code 1")
	if len(running) > 0 {
		t.Errorf("still running: %v", running)
	}
	if text, err := os.ReadFile(other.Log); !strings.HasSuffix(string(text), "terminated\n") {
		t.Errorf("the other process noted %q, %v", text, err)
	}
}

// F91: the former program behind a killed shell has ended before the next start.
func TestKilledShellIsRestartedWithoutFormerTrainer(t *testing.T) {
	b := script(t, `sh -c 'trap "" TERM; echo $$ >> $0.pids; while :; do sleep 0.01; done' $1; echo done`)
	b.Processes[0].Grace = 0
	var shells []int
	b.Noted = func(_ string, pid int) {
		if pid == 0 {
			return
		}
		if len(shells) == 1 && running(pidsOf(b.file)[0]) {
			t.Error("the former program and the next run at the same time")
		}
		shells = append(shells, pid)
		want := len(shells)
		go func() {
			for len(pidsOf(b.file)) < want {
				time.Sleep(time.Millisecond) // interval between checks
			}
			_ = syscall.Kill(pid, syscall.SIGKILL) // the shell alone
		}()
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for len(pidsOf(b.file)) < 2 {
			time.Sleep(time.Millisecond) // interval between checks
		}
		cancel()
	}()
	if err := b.Run(ctx, nil); err != nil {
		t.Error(err)
	}
	for _, pid := range pidsOf(b.file) {
		if running(pid) {
			t.Errorf("program %s still runs", pid)
		}
	}
}

func pidsOf(file string) []string {
	text, _ := os.ReadFile(file + ".pids")
	return strings.Fields(string(text))
}

// running reports whether a process runs. Zombies do not.
func running(pid string) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
