package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"trainmaster/internal/freeport"
	"trainmaster/scripts/prepared"
)

// pythonStubs is a directory with the stubs of all .proto files. The first use makes it.
var pythonStubs struct {
	once sync.Once
	dir  string
	err  error
	text []byte // output of the compiler
}

// pythonCommand returns a command of a Python program, with the stubs of the .proto files.
func pythonCommand(ctx context.Context, t testing.TB, script string, args ...string) *exec.Cmd {
	t.Helper()
	python := prepared.Python(t)
	pythonStubs.once.Do(func() {
		if pythonStubs.dir, pythonStubs.err = os.MkdirTemp("", "trainmaster-stubs-"); pythonStubs.err != nil {
			return
		}
		files, err := filepath.Glob("../proto/trainmaster/v1/*.proto")
		if err != nil {
			pythonStubs.err = err
			return
		}
		compile := []string{"-m", "grpc_tools.protoc", "-I../proto", "--python_out=" + pythonStubs.dir, "--grpc_python_out=" + pythonStubs.dir}
		pythonStubs.text, pythonStubs.err = exec.Command(python, append(compile, files...)...).CombinedOutput()
	})
	if pythonStubs.err != nil {
		t.Fatalf("make the stubs: %v\n%s", pythonStubs.err, pythonStubs.text)
	}
	cmd := exec.CommandContext(ctx, python, append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+pythonStubs.dir, "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// exampleRun returns the command of examples/coordinator/run.sh, in a process group of its own, and the directory of its temporary files.
func exampleRun(t testing.TB, out *output) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	prepared.Python(t)
	tmp = t.TempDir()
	cmd = exec.CommandContext(t.Context(), "../examples/coordinator/run.sh")
	cmd.Env = append(command(t.Context(), t, "").Env, "MASTER="+program(t), "TMPDIR="+tmp)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd, tmp
}

// wantNothingLeft fails the test if the example has left processes or files.
func wantNothingLeft(t testing.TB, cmd *exec.Cmd, tmp string) {
	t.Helper()
	if err := syscall.Kill(-cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("processes of the example: expected none, found %v", err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("files of the example: expected none, found %v, %v", left, err)
	}
}

// A trainer in Python streams, trains, pushes and evaluates. The master and another program query it, and an operator stops it. Each task
// counts once.
func TestPythonExample(t *testing.T) {
	t.Parallel()
	var out output
	cmd, tmp := exampleRun(t, &out)
	err := cmd.Run()
	text := out.String()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	wantNothingLeft(t, cmd, tmp)
	const passes, tasks, evaluationTasks = 2, 4, 3
	for line, want := range map[string]int{
		`asked +training task \d+`:                                   passes*tasks + 1, // one is stopped
		`asked +evaluation task \d+`:                                 passes * evaluationTasks,
		`streamed +\d+ records from 127.0.0.1:\d+`:                   passes*(tasks+evaluationTasks) + 1,
		`trained +3\d\d records, loss [\d.]+, model \d+.npy`:         passes * tasks,
		`pushed +COUNTED`:                                            passes * (tasks + evaluationTasks),
		`evaluated +model \d+.npy of round \d: \d+ of \d+ correct`:   passes * evaluationTasks,
		`queried +GetModel: version \d+, \d+ bytes`:                  1,
		`copied +model version \d+, \d+ bytes`:                       1,
		`stopped +task \d+ at iteration \d+`:                         1,
		`ended +REASON_PASSES_DONE`:                                  1,
		`round \d after pass \d \{'accuracy': 0\.\d+, 'loss': .*`:    passes,
		`Nothing is missing and nothing was counted twice; the .*`:   1,
		`0 +[12] +4 +4 +0 +[01] +0 +0`:                               passes,
		`1 +[12] +3 +3 +0 +0 +0 +0`:                                  passes,
		`trainer python-1 stops its task \d+, which is dispatched.*`: 1,
	} {
		if n := len(regexp.MustCompile(`(?m)^`+line+`\s*$`).FindAllString(text, -1)); n != want {
			t.Errorf("lines %q: expected %d, found %d", line, want, n)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^queried +GetProgress: iteration \d+ in task [1-9]`).FindAllString(text, -1)); n == 0 {
		t.Error("GetProgress: expected calls, found none")
	}
	wantPageShown(t, "../examples/coordinator/README.md", text)
	if t.Failed() {
		t.Log(text)
	}
}

// wantPageShown fails the test unless each line of output that a page shows is a line of a run, except for its numbers and quoted words.
func wantPageShown(t *testing.T, page, run string) {
	t.Helper()
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	shape := func(text string) []string {
		text = regexp.MustCompile(`[\d-]+[\d:.,-]*\d|\d`).ReplaceAllString(text, "0")
		return strings.Split(regexp.MustCompile(`'\w+'`).ReplaceAllString(text, "''"), "\n")
	}
	found := shape(run)
	blocks := regexp.MustCompile("(?sm)^```text\n(.*?)^```").FindAllSubmatch(content, -1)
	if len(blocks) == 0 {
		t.Errorf("%s: expected a block of text, found none", page)
	}
	for _, block := range blocks {
		for _, line := range shape(strings.TrimSpace(string(block[1]))) {
			if line != "..." && !slices.Contains(found, line) {
				t.Errorf("%s: line %q is not in the output of a run", page, line)
			}
		}
	}
}

// Ctrl-C ends the example, its processes, and removes its files.
func TestInterruptedPythonExample(t *testing.T) {
	t.Parallel()
	var out output
	cmd, tmp := exampleRun(t, &out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the trainer trains", func() (bool, string) { return out.line("trained") != nil, out.String() })
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(cmd.Wait()); code != exitInterrupted {
		t.Errorf("exit code %d, expected %d\n%s", code, exitInterrupted, out.String())
	}
	wantNothingLeft(t, cmd, tmp)
}

// F231: a program in Python, made from the .proto files alone, calls each method of Coordinator, TrainerControl and DataProxy, and checks the
// results. It ends a job with evaluation rounds, and a job with explicit commits. Invalid requests have their codes and details, and change
// nothing.
func TestPythonCallsEveryMethod(t *testing.T) {
	t.Parallel()
	prepared.Python(t)
	plain, explicit, synchronous := newJob(t), newJob(t), newJob(t)
	addr := func() string {
		t.Helper()
		addr, err := freeport.Addr("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		return addr
	}
	data := filepath.Join(plain.dir, "data", "digits-")
	flags := []string{"--chunks-per-task", "6", "--task-timeout-min", "2s", "--data-proxy", "self", "--data-roots", plain.dir, "--evaluation-data", data + "test-*"}
	leader, standby, other, sync := addr(), addr(), addr(), addr()
	master := plain.master(append(flags, "--listen", leader)...)
	plain.awaitLeader(0)
	plain.master(append(flags, "--listen", standby)...).awaitLog("waiting for the lock")
	committer := explicit.master("--chunks-per-task", "12", "--listen", other, "--explicit-commit")
	explicit.awaitLeader(0)
	synchronous.master("--passes", "0", "--listen", sync, "--update-mode", "sync", "--ps", "1")
	synchronous.server()
	synchronous.trainer("go")
	synchronous.awaitMidPass(1)
	cmd := pythonCommand(t.Context(), t, "testdata/every_method.py", leader, standby, other, sync, data+"0*")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), " methods\n") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	master.wantExit(0)
	committer.wantExit(0)
	plain.wantVerified(1, 12)
	explicit.wantVerified(1, 6)
}

// A search with Optuna runs a job for each trial. The value of a trial is the last accuracy of its job.
func TestPythonSearch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := pythonCommand(t.Context(), t, "../examples/optuna/search.py", "--trials", "2", "--master", program(t), "--dir", dir, "--", "--passes", "2", "--trainers", "1", "--ps", "1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	best := 0.0
	for trial := range 2 {
		rounds := evaluationsOf(t, filepath.Join(dir, fmt.Sprintf("trial-%d", trial), "001"))
		if len(rounds) == 0 {
			t.Fatalf("trial %d: expected evaluation rounds, found none", trial)
		}
		accuracy := rounds[len(rounds)-1].Figures["accuracy"]
		best = max(best, accuracy)
		found := regexp.MustCompile(fmt.Sprintf(`Trial %d finished with value: ([\d.]+)`, trial)).FindSubmatch(out)
		if len(found) == 0 {
			t.Fatalf("expected the value of trial %d, found %s", trial, out)
		}
		if value, err := strconv.ParseFloat(string(found[1]), 64); err != nil || math.Abs(value-accuracy) > 1e-9 {
			t.Errorf("trial %d: found the value %v (%v), expected %v", trial, value, err, accuracy)
		}
	}
	wantPageShown(t, "../examples/optuna/README.md", string(out))
	if line := fmt.Sprintf("\nbest: accuracy %.4f in trial ", best); !strings.Contains(string(out), line) {
		t.Errorf("expected %q, found %s", line, out)
	}
}
