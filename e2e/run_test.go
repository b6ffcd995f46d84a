package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"trainmaster/dataset/convert"
	"trainmaster/etcdstore"
	"trainmaster/local"
	pb "trainmaster/proto/trainmaster/v1"
)

// Number of tasks per pass of the digits dataset in `master run` with three trainers.
const runTasks = 24

// A complete job by `master run`.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		model, mode string
		accuracy    float64
		passes      int // 0: the default
		flags       []string
	}{
		{"fm", "async", 0.77, 0, []string{"--dataset", "flights"}},
		{"logistic", "sync", 0.77, 2, []string{"--dataset", "flights"}},
		{"softmax", "async", 0.93, 0, nil},
		{"softmax", "sync", 0.93, 12, nil},
		{"mlp", "async", 0.96, 0, nil},
		{"mlp", "sync", 0.96, 12, nil},
		{"mlp", "async", 0.96, 0, strings.Fields("--optimizer adam --learning-rate 0.002 --schedule cosine --warmup-steps 100 --schedule-steps 5000")},
		{"mlp", "sync", 0.96, 12, strings.Fields("--optimizer adam --clip-norm 10")},
	} {
		dataset, records := "digits", 359
		if slices.Contains(c.flags, "flights") {
			dataset, records = "flights", 4000
		}
		t.Run(strings.Join(append([]string{c.model, c.mode}, c.flags...), " "), func(t *testing.T) {
			t.Parallel()
			args := append([]string{"run", "--model", c.model, "--update-mode", c.mode, "-o", "json"}, c.flags...)
			if c.passes > 0 {
				args = append(args, "--passes", fmt.Sprint(c.passes))
			}
			o := run(t, t.TempDir(), args...)
			o.wants(t, 0)
			var r local.Result
			o.decode(t, &r)
			wantPlain(t, o.stderr)
			if r.TestRecords != records || r.Restarts != 0 || r.Model != c.model {
				t.Errorf("found %+v, expected %s, %d records, and no restarts", r, c.model, records)
			}
			if *r.Accuracy < c.accuracy || dataset == "flights" && (r.AUC == nil || *r.AUC < 0.62) {
				t.Errorf("found %+v, expected an accuracy of at least %.2f, and with flights an area under the ROC curve of at least 0.62", r, c.accuracy)
			}
			test, err := filepath.Glob(filepath.Join(r.Dir, "data", dataset+"-test-*"))
			if err != nil {
				t.Fatal(err)
			}
			if own := accuracy(t, r.ModelPath, test); own != *r.Accuracy {
				t.Errorf("accuracy of the saved model: expected %[2]v, found %.4[1]f", own, *r.Accuracy)
			}
		})
	}
}

// wantPlain fails the test if the text contains control characters for a terminal.
func wantPlain(t testing.TB, text string) {
	t.Helper()
	if i := strings.IndexAny(text, "\r\x1b\b"); i >= 0 {
		t.Errorf("found %q in output that is not for a terminal: %q", text[i], text)
	}
}

// runJob is a running `master run` and its job.
type runJob struct {
	*job
	*process
}

var etcdAt = regexp.MustCompile(`etcd at (http://[0-9.:]+);`)

// startRun starts a `master run` with six processes and waits for them and for the first pass.
func startRun(t testing.TB, args ...string) runJob {
	t.Helper()
	return startRunOf(t, 6, args...)
}

// passesOf returns the number of passes of a run during which faults are injected. With the race detector fewer passes are enough.
func passesOf(usual, raced int) int {
	if raceDetector {
		return raced
	}
	return usual
}

func startRunOf(t testing.TB, processes int, args ...string) runJob {
	t.Helper()
	r := runJob{job: &job{t: t, name: "default", dir: t.TempDir()}}
	r.process = start(t, "run", r.job.dir, append([]string{"run"}, args...)...)
	eventually(t, "the run has an etcd", func() (bool, string) {
		found := etcdAt.FindStringSubmatch(r.log())
		if found != nil {
			r.endpoint = found[1]
		}
		return found != nil, "the log below"
	})
	r.open()
	r.awaitRunning(processes)
	r.awaitPass(1)
	return r
}

// open opens the store in the etcd of the run.
func (r *runJob) open() {
	r.job.t.Helper()
	store, err := etcdstore.Open(context.Background(), etcdstore.Config{Endpoints: []string{r.endpoint}})
	if err != nil {
		r.job.t.Fatal(err)
	}
	r.store = store
	r.job.t.Cleanup(func() {
		_ = store.Close() // its etcd may have ended
		if r.conn != nil {
			_ = r.conn.Close() // may be closed
		}
	})
}

// awaitChildren waits until the master, two parameter servers and three trainers run.
func (r *runJob) awaitChildren() (list []child) {
	r.job.t.Helper()
	return r.awaitRunning(6)
}

// awaitRunning waits until the given number of processes runs.
func (r *runJob) awaitRunning(processes int) (list []child) {
	r.job.t.Helper()
	eventually(r.job.t, fmt.Sprintf("all %d processes run", processes), func() (bool, string) {
		list = children(r.job.t, r.pid)
		return len(list) == processes, fmt.Sprint(list)
	})
	return list
}

// awaitPass waits for a finished task of the given pass, or for a later pass, and returns the number of the pass. In a synchronous
// job the tasks of a pass can all count at its end.
func (r *runJob) awaitPass(pass uint32) uint32 {
	r.job.t.Helper()
	return r.awaitStatus(fmt.Sprintf("pass %d", pass), func(s *pb.StatusReply) bool {
		if len(s.Datasets) == 0 {
			return false
		}
		now := s.Datasets[0]
		return now.Pass > pass || now.Pass == pass && now.Done > 0
	}).Datasets[0].Pass
}

// Each process of a run is killed, one after another. The run restarts it, and no task is lost or counted twice.
func TestRunSurvivesKills(t *testing.T) {
	t.Parallel()
	passes := passesOf(200, 50)
	r := startRun(t, "--passes", fmt.Sprint(passes), "--journal", "-o", "json")
	pass := uint32(1)
	for _, victim := range r.awaitChildren() {
		pass = r.awaitPass(pass + 1)
		if err := syscall.Kill(victim.pid, syscall.SIGKILL); err != nil {
			t.Fatalf("kill %s: %v", victim.kind(), err)
		}
		eventually(t, victim.kind()+" has ended", func() (bool, string) { return victim.ended(), "" })
		r.awaitChildren()
	}
	r.wantExit(0)
	text := r.log()
	var result local.Result
	decode(t, text[strings.Index(text, "\n{")+1:], &result)
	if *result.Accuracy < 0.93 || result.Restarts < 6 {
		t.Errorf("found %+v, expected an accuracy of at least 0.93 and at least 6 restarts", result)
	}

	// The etcd data is in the directory of the run.
	etcd, err := etcdstore.StartEmbedded(t.Context(), etcdstore.EmbeddedConfig{Dir: filepath.Join(result.Dir, "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	r.endpoint, r.job.dir = etcd.Endpoint(), result.Dir
	r.open()
	r.data = runData(t, result.Dir)
	r.wantExactlyOnce(passes, runTasks)
}

// runData returns the dataset of a run.
func runData(t testing.TB, dir string) (data convert.Result) {
	t.Helper()
	var err error
	if data.Train.Paths, err = filepath.Glob(filepath.Join(dir, "data", "digits-0*")); err != nil {
		t.Fatal(err)
	}
	for _, err := range records(data.Train.Paths) {
		if err != nil {
			t.Fatal(err)
		}
		data.Train.Records++
	}
	return data
}

// After SIGINT, SIGTERM, or SIGTERM twice as timeout(1) sends it, the run stops gracefully, prints the command that continues it,
// and leaves no process.
func TestRunInterrupted(t *testing.T) {
	for name, signals := range map[string][]syscall.Signal{
		"interrupt": {syscall.SIGINT}, "terminated": {syscall.SIGTERM}, "terminated twice": {syscall.SIGTERM, syscall.SIGTERM},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRun(t, "--passes", "1000000")
			started := r.awaitChildren()
			r.awaitPass(2)
			began := time.Now()
			for _, s := range signals {
				r.signal(s)
			}
			r.wantExit(exitInterrupted)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("the run ended %v after %v, expected a few seconds", took, signals)
			}
			for _, c := range started {
				if !c.ended() {
					t.Errorf("%s (%d) is still running", c.kind(), c.pid)
				}
			}
			next := "interrupted; continue with: master run --resume " + filepath.Join(r.job.dir, "trainmaster-run", "001")
			if text := r.log(); !strings.Contains(text, next) {
				t.Errorf("expected %q, found %s", next, tail(text, 5))
			}
		})
	}
}

// A killed run leaves no process.
func TestKilledRunLeavesNoProcess(t *testing.T) {
	t.Parallel()
	r := startRun(t, "--passes", "1000000")
	started := r.awaitChildren()
	r.kill()
	for _, c := range started {
		eventually(t, c.kind()+" has ended", func() (bool, string) { return c.ended(), fmt.Sprint(c) })
	}
}

// A trainer is paused until the master has ended. It finds no master, and the run ends.
func TestRunEndsWithoutTrainer(t *testing.T) {
	t.Parallel()
	r := startRun(t, "--passes", fmt.Sprint(passesOf(30, 10)))
	var away child
	for _, c := range r.awaitChildren() {
		if c.kind() == "trainer-1" {
			away = c
		}
	}
	if err := syscall.Kill(away.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the master has ended", func() (bool, string) {
		for _, c := range children(t, r.pid) {
			if c.kind() == "master" {
				return false, fmt.Sprint(c)
			}
		}
		return true, ""
	})
	if err := syscall.Kill(away.pid, syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	r.wantExit(0)
}
