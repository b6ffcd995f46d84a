package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// F32: two thousand trainers of a leader that is killed, and two hundred of one that hangs, come
// back to the next leader within a bound, and nothing that was acknowledged is lost or counted
// twice.
func TestReconnectBench(t *testing.T) { // not parallel: the bound is for a machine that does little else
	// allBack bounds the time until the last trainer is answered: 3 s alone on two cores, 54 s with other work beside it
	// (docs/scaling.md).
	const allBack = 60.0
	for mode, trainers := range map[string]int{"kill": 2000, "hang": 200} {
		needsFiles(t, trainers+500)
		got := run(t, t.TempDir(), "bench", "reconnect", "--trainers", strconv.Itoa(trainers), "--mode", mode, "--task-time", "2s", "--window", "1s", "-o", "json")
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
		case f.BackSeconds > allBack:
			t.Errorf("%s: %d trainers were back after %.1f s, expected at most %v s", mode, trainers, f.BackSeconds, allBack)
		case f.Lost == nil || f.Doubled == nil || *f.Lost != 0 || *f.Doubled != 0:
			t.Errorf("%s: something was lost or counted twice: %s", mode, got.stdout)
		case f.Finished == 0: // how many, the machine says
			t.Errorf("%s: no finish was looked for in the ledger: %s", mode, got.stdout)
		}
	}
}

// needsFiles skips a test where fewer files can be open.
func needsFiles(t *testing.T, n int) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Max < uint64(n) {
		if os.Getenv("REQUIRE") == "all" {
			t.Fatalf("%d open files are allowed, the test needs %d: ulimit -Hn %d", limit.Max, n, n)
		}
		t.Skipf("%d open files are allowed, the test needs %d: ulimit -Hn %d", limit.Max, n, n)
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
