package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"trainmaster/dataset/convert"
	"trainmaster/local"
	"trainmaster/taskqueue"
)

// buildExample builds examples/trainer in a separate module with the commands of its README.
func buildExample(t testing.TB) (program string) {
	t.Helper()
	repository, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../examples/trainer/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var script string
	for _, block := range shellBlock.FindAllSubmatch(page, -1) {
		if bytes.Contains(block[1], []byte("go mod init")) {
			script = string(block[1])
		}
	}
	if script == "" {
		t.Fatal("examples/trainer/README.md has no commands with go mod init")
	}
	dir := t.TempDir()
	build := exec.Command("bash", "-euc", script)
	build.Dir = dir
	build.Env = append(os.Environ(), "TRAINMASTER="+repository, "GOPROXY=off", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, said)
	}
	return filepath.Join(dir, "mytrainer")
}

// prefixOf returns the path prefix of a dataset for --data.
func prefixOf(data convert.Result) string {
	return strings.TrimSuffix(data.Train.Paths[0], fmt.Sprintf("-00000-of-%05d", len(data.Train.Paths)))
}

// trainersOf waits until the user's trainers of a run are running.
func (r *runJob) trainersOf(program string, want int) (list []child) {
	r.job.t.Helper()
	eventually(r.job.t, fmt.Sprintf("%d user trainers run", want), func() (bool, string) {
		list = slices.DeleteFunc(children(r.job.t, r.pid), func(c child) bool { return c.args[0] != program })
		return len(list) == want, fmt.Sprint(list)
	})
	return list
}

// A trainer and the master are killed in a job of the example trainer. The job continues.
func TestExampleTrainerSurvivesKills(t *testing.T) {
	t.Parallel()
	passes, tasks := passesOf(200, 50), runTasks
	trainer := buildExample(t)
	data := digits(t, t.TempDir())
	prefix := prefixOf(data)
	r := startRunOf(t, 4, "--data", prefix, "--passes", fmt.Sprint(passes), "-o", "json", "--", trainer)
	victims := slices.Concat(r.trainersOf(trainer, 3)[:1], slices.DeleteFunc(children(t, r.pid), func(c child) bool { return c.args[0] == trainer }))
	pass := uint32(1)
	for _, victim := range victims {
		pass = r.awaitPass(pass + 1)
		if err := syscall.Kill(victim.pid, syscall.SIGKILL); err != nil {
			t.Fatalf("kill %q: %v", victim.args, err)
		}
		eventually(t, "the process has ended", func() (bool, string) { return victim.ended(), fmt.Sprint(victim.args) })
		r.awaitRunning(4)
	}
	r.wantExit(0)
	text := r.log()
	var result local.Result
	decode(t, text[strings.Index(text, "\n{")+1:], &result)
	if result.Passes != passes || result.Tasks != tasks || result.Restarts != len(victims) || result.SetAside.Tasks != 0 || result.Accuracy != nil {
		t.Errorf("found %+v, expected %d passes of %d tasks, %d restarts and no accuracy", result, passes, tasks, len(victims))
	}
	o := run(t, r.job.dir, "verify", "--data-dir", filepath.Join(result.Dir, "etcd"), "-o", "json")
	o.wants(t, 0)
	var reports []taskqueue.PassReport
	o.decode(t, &reports)
	if len(reports) != passes {
		t.Fatalf("verify reports %d passes, expected %d", len(reports), passes)
	}
	for i, found := range reports {
		if want := (taskqueue.PassReport{Pass: taskqueue.Pass(i + 1), Tasks: tasks, CountedOnce: tasks, Redelivered: found.Redelivered}); found != want {
			t.Errorf("verify reports %+v, expected %+v", found, want)
		}
	}
}

// A run of the user's trainers is interrupted and ends its processes. --resume continues it with the stored command.
func TestOwnTrainersInterruptedAndResumed(t *testing.T) {
	t.Parallel()
	trainer := buildExample(t)
	prefix := prefixOf(digits(t, t.TempDir()))
	r := startRunOf(t, 4, "--data", prefix, "--passes", fmt.Sprint(passesOf(400, 100)), "--", trainer)
	started := r.awaitRunning(4)
	r.awaitPass(2)
	began := time.Now()
	r.signal(syscall.SIGINT)
	if code := r.wait(); code == 0 {
		t.Error("an interrupted run exited with code 0")
	}
	if took := time.Since(began); took > time.Minute { // a few seconds on an idle machine
		t.Errorf("the run ended %v after SIGINT, expected less than a minute", took)
	}
	for _, c := range started {
		if !c.ended() {
			t.Errorf("%q is still running", c.args)
		}
	}
	dir := filepath.Join(r.job.dir, "trainmaster-run", "001")
	run(t, r.job.dir, "run", "--resume", dir, "--", "sleep", "1").wants(t, exitUsage, "omit the command")
	resumed := run(t, r.job.dir, "run", "--resume", dir)
	resumed.wants(t, 0)
	for _, line := range []string{"tasks     24 in each pass", "restarts  0", "logs      " + dir} {
		if !strings.Contains(resumed.stdout, line) {
			t.Errorf("resumed run: expected %q, found: %s", line, resumed.stdout)
		}
	}
	run(t, r.job.dir, "run", "--resume", dir).wants(t, 0) // the job has ended
}

// If the trainer command fails, or ends before the job, the run ends with the reason.
func TestOwnTrainersThatFail(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	prefix := prefixOf(digits(t, dir))
	shell := func(script string) []string { return []string{"--data", prefix, "--", "sh", "-c", script} }
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{shell("echo out of luck; exit 1"), exitFailed, []string{": exit code 1: out of luck", "logs/trainer-"}},
		{shell("echo --data: expected a file; exit 64"), exitFailed, []string{": exit code 64 (usage): --data: expected a file", "logs/trainer-"}},
		{shell("no-such-program-here"), exitFailed, []string{": exit code 127: ", "no-such-program-here"}},
		{slices.Concat([]string{"--max-relaunch", "1"}, shell("[ -e $TRAINMASTER_TRAINER ] || { : > $TRAINMASTER_TRAINER; kill -9 $$; }; echo later; exit 1")), exitFailed,
			[]string{", attempt 3: exit code 1: later", "logs/trainer-"}},
		{shell("exit 0"), exitFailed, []string{"all trainers exited with code 0 before the end of the job"}},
		{[]string{"--data", prefix, "--", "no-such-program-here"}, exitUsage, []string{"no-such-program-here", "expected a program"}},
		{[]string{"--data", prefix, "true"}, exitUsage, []string{"follows --"}},
		{[]string{"--data", prefix, "--model", "mlp", "--", "true"}, exitUsage, []string{"--model", "built-in trainers"}},
		{[]string{"--data", prefix + "-none", "--", "true"}, exitUsage, []string{prefix + "-none-00000-of-00001", "recordio convert"}},
		{[]string{"--data", prefix, "--update-mode", "sync", "--", "true"}, exitUsage, []string{"--ps"}},
	} {
		o := run(t, dir, append([]string{"run"}, c.args...)...)
		o.wants(t, c.code, c.says...)
	}
}

// The environment of a user's trainer names the master, its protocol, etcd, the job and the trainer.
func TestOwnTrainerEnvironment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	prefix := prefixOf(digits(t, dir))
	expected := []string{"TRAINMASTER_ADDR", "TRAINMASTER_BIN", "TRAINMASTER_ENDPOINTS", "TRAINMASTER_JOB", "TRAINMASTER_PROTOCOL", "TRAINMASTER_TRAINER"}
	for n, flags := range [][]string{nil, {"--ps", "1"}} {
		args := slices.Concat([]string{"run", "--trainers", "1", "--data", prefix}, flags, []string{"--", "sh", "-c", "env | grep ^TRAINMASTER_ | sort; exit 1"})
		run(t, dir, args...).wants(t, exitFailed)
		said, err := os.ReadFile(filepath.Join(dir, "trainmaster-run", fmt.Sprintf("%03d", n+1), "logs", "trainer-0.log"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for line := range strings.Lines(string(said)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			if value == "" || name == "TRAINMASTER_TRAINER" && value != "trainer-0" || name == "TRAINMASTER_PROTOCOL" && value != "grpc" {
				t.Errorf("unexpected variable %q", line)
			}
			names = append(names, name)
		}
		if !slices.Equal(names, expected) {
			t.Errorf("found variables %q, expected %q", names, expected)
		}
	}
}
