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

// F32: a leader with 2,000 trainers is killed, and a leader with 200 trainers hangs. All trainers reconnect to the next leader
// within the limit, and no acknowledged finish is lost or counted twice.
func TestReconnectBench(t *testing.T) { // not parallel, because of the time limit
	// allBack is the time limit in seconds until the last trainer is answered: 3 s on two idle cores, 54 s on a busy machine
	// (docs/scaling.md).
	const allBack = 60.0
	for mode, trainers := range map[string]int{"kill": 2000, "hang": 200} {
		needsFiles(t, trainers+500)
		got := run(t, t.TempDir(), "bench", "reconnect", "--trainers", strconv.Itoa(trainers), "--mode", mode, "--task-time", "2s", "--window", "3s", "-o", "json")
		if got.code != 0 {
			t.Fatalf("%s: exit code %d: %s", mode, got.code, got.stderr)
		}
		var figures struct {
			Trainers    int     `json:"trainers"`
			BackSeconds float64 `json:"back_s"`
			Lost        *int    `json:"lost"`
			Doubled     *int    `json:"doubled"`
			Finished    int     `json:"finished"`
			P99BeforeMS float64 `json:"p99_before_ms"`
			RSSBytes    int64   `json:"rss_bytes"`
		}
		if err := json.Unmarshal([]byte(got.stdout), &figures); err != nil {
			t.Fatalf("%s: %v in %s", mode, err, got.stdout)
		}
		switch f := figures; {
		case f.Trainers != trainers || f.BackSeconds <= 0 || f.P99BeforeMS <= 0 || f.RSSBytes <= 0: // the window after it may have no answer on a busy machine
			t.Errorf("%s: %s", mode, got.stdout)
		case f.BackSeconds > allBack:
			t.Errorf("%s: %d trainers reconnected after %.1f s, expected at most %v s", mode, trainers, f.BackSeconds, allBack)
		case f.Lost == nil || f.Doubled == nil || *f.Lost != 0 || *f.Doubled != 0:
			t.Errorf("%s: expected no lost and no doubled finish: %s", mode, got.stdout)
		case f.Finished == 0: // the number depends on the machine
			t.Errorf("%s: expected finishes: %s", mode, got.stdout)
		}
	}
}

// needsFiles skips the test if the limit of open files is below n. With REQUIRE=all it fails the test.
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

// If the limit of open files is too low, the bench reports that before it starts.
func TestReconnectBenchReportsFileLimit(t *testing.T) {
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
