package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"trainmaster/local"
)

// result waits for the end of a run that was started with -o json.
func (r *runJob) result(code int) (result local.Result) {
	r.job.t.Helper()
	r.wantExit(code)
	text := r.log()
	decode(r.job.t, text[strings.Index(text, "\n{")+1:], &result)
	return result
}

// A parameter server hangs for longer than its lease, and exits when it resumes. The run restarts it, and the job continues.
func TestRunRestartsHungServer(t *testing.T) {
	t.Parallel()
	r := startRun(t, "--passes", fmt.Sprint(passesOf(60, 20)), "-o", "json")
	var server child
	for _, c := range r.awaitChildren() {
		if c.kind() == "pserver" {
			server = c
		}
	}
	if err := syscall.Kill(server.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease of a parameter server expires", func() (bool, string) {
		servers, _, err := r.store.ReadAll(context.Background(), "/ps/")
		return err == nil && len(servers) < 2, fmt.Sprint(len(servers), err)
	})
	if err := syscall.Kill(server.pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if result := r.result(0); *result.Accuracy < 0.93 || result.Restarts < 1 || result.SetAside.Tasks > 0 {
		t.Errorf("found %+v, expected an accuracy of at least 0.93, a restart, and nothing set aside", result)
	}
}

// A file of the dataset is removed during a run. The progress and the result report the tasks that are set aside.
func TestRunReportsMissingFile(t *testing.T) {
	t.Parallel()
	r := startRun(t, "--passes", fmt.Sprint(passesOf(40, 25)), "-o", "json")
	shards, err := filepath.Glob(filepath.Join(r.job.dir, "trainmaster-run", "001", "data", "digits-00001-of-*"))
	if err != nil || len(shards) != 1 {
		t.Fatalf("the shards are %v, %v", shards, err)
	}
	if err := os.Rename(shards[0], shards[0]+".away"); err != nil {
		t.Fatal(err)
	}
	result := r.result(local.ExitSetAside)
	if result.SetAside.Tasks != runTasks/4 || !strings.Contains(result.SetAside.Example, "digits-00001-of") {
		t.Errorf("set aside: %+v, expected %d tasks because of %s", result.SetAside, runTasks/4, shards[0])
	}
	if !strings.Contains(r.log(), "SET ASIDE") {
		t.Errorf("progress: expected SET ASIDE, found %s", tail(r.log(), 10))
	}
}
