package e2e

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/internal/freeport"
	"trainmaster/scripts/prepared"
)

// A trainer in Python, made from the .proto files alone, trains a job over gRPC while its leader is killed. It finds the next leader by the
// health check of its gRPC library.
func TestPythonTrainer(t *testing.T) {
	t.Parallel()
	const passes = 20
	python := prepared.Python(t)
	j := newJob(t)
	var addrs []string
	for range 3 {
		addr, err := freeport.Addr("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, addr)
	}
	leader := j.master("--passes", "20", "--listen", addrs[0])
	j.awaitLeader(0)
	standby := j.master("--passes", "20", "--listen", addrs[1])
	start(t, "dataproxy", j.dir, "dataproxy", "--listen", addrs[2], "--data-roots", j.dir)
	script, err := filepath.Abs("../examples/coordinator/trainer.py")
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	trainer := exec.CommandContext(t.Context(), python, script, "--masters", strings.Join(addrs[:2], ","), "--data-proxy", addrs[2],
		"--data", filepath.Join(j.dir, "data", "digits-0*"))
	trainer.Stdout, trainer.Stderr = &output, &output
	if err := trainer.Start(); err != nil {
		t.Fatal(err)
	}
	j.awaitMidPass(2)
	leader.kill()
	if err := trainer.Wait(); err != nil || !strings.Contains(output.String(), "REASON_PASSES_DONE") {
		t.Errorf("trainer: %v\n%s", err, output.String())
	}
	standby.wantExit(0)
	j.wantVerified(passes, tasksPerPass)
}
