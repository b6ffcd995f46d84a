package e2e

import (
	"encoding/json"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// F32, with as many trainers as a test can afford: all come back to the next leader, and nothing that was acknowledged is
// lost or counted twice. Nothing here depends on how long it took.
func TestReconnectBench(t *testing.T) {
	t.Parallel()
	const trainers = 200
	for _, mode := range []string{"kill", "hang"} {
		got := run(t, t.TempDir(), "bench", "reconnect", "--trainers", strconv.Itoa(trainers), "--mode", mode, "--task-time", "1s", "--window", "1s", "-o", "json")
		if got.code != 0 {
			t.Fatalf("%s: exit code %d: %s", mode, got.code, got.stderr)
		}
		var figures struct {
			Trainers    int     `json:"trainers"`
			BackSeconds float64 `json:"back_s"`
			P99BeforeMS float64 `json:"p99_before_ms"`
			P99AfterMS  float64 `json:"p99_after_ms"`
			Lost        *int    `json:"lost"`
			Doubled     *int    `json:"doubled"`
			Finished    int     `json:"finished"`
			RSSBytes    int64   `json:"rss_bytes"`
		}
		if err := json.Unmarshal([]byte(got.stdout), &figures); err != nil {
			t.Fatalf("%s: %v in %s", mode, err, got.stdout)
		}
		switch f := figures; {
		case f.Trainers != trainers || f.BackSeconds <= 0 || f.P99BeforeMS <= 0 || f.P99AfterMS <= 0 || f.RSSBytes <= 0:
			t.Errorf("%s: %s", mode, got.stdout)
		case f.Lost == nil || f.Doubled == nil || *f.Lost != 0 || *f.Doubled != 0:
			t.Errorf("%s: something was lost or counted twice: %s", mode, got.stdout)
		case f.Finished == 0: // how many, the machine says
			t.Errorf("%s: no finish was looked for in the record: %s", mode, got.stdout)
		}
	}
}

// Where so many connections cannot be, that is said before anything starts.
func TestReconnectSaysHowManyFilesItNeeds(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -n 600 && exec "$0" bench reconnect --trainers 200`, program(t)).CombinedOutput()
	if code := exitCode(err); code != 1 {
		t.Errorf("exit code %d, expected 1", code)
	}
	for _, words := range []string{"700 files and connections", "a limit of 600", "ulimit -Hn 700", "fewer --trainers"} {
		if !strings.Contains(string(out), words) {
			t.Errorf("expected %q in: %s", words, out)
		}
	}
}
