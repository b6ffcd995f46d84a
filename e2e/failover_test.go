package e2e

import (
	"encoding/json"
	"syscall"
	"testing"
	"time"
)

// A standby takes over from a leader that dies or hangs, long before the lease expires. Trainers see only a pause, and no task
// is lost or counted twice. A paused leader that resumes has lost its term.
func TestStandbyTakesOver(t *testing.T) {
	for name, tt := range map[string]struct {
		fault    syscall.Signal
		protocol string
	}{
		"kill":              {syscall.SIGKILL, "grpc"},
		"hang":              {syscall.SIGSTOP, "grpc"},
		"hang over net/rpc": {syscall.SIGSTOP, "netrpc"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const passes = 6
			j := newJob(t)
			flags := []string{"--passes", "6", "--ps", "1", "--lease-ttl", "60s", "--holddown", "2s"}
			leader := j.master(flags...)
			term := j.awaitLeader(0)
			j.server()
			trainers := []*process{j.trainer("a", "--protocol", tt.protocol), j.trainer("b", "--protocol", tt.protocol)}
			masters := []*process{leader}
			for _, pass := range []uint32{1, 3} {
				standby := j.master(flags...)
				masters = append(masters, standby)
				standby.awaitLog("standby is warm")
				j.awaitMidPass(pass)
				began := time.Now()
				leader.signal(tt.fault)
				term = j.awaitLeader(term)
				if took := time.Since(began); took > 30*time.Second {
					t.Errorf("takeover %v after the fault, expected at most 30s with a lease of 60s", took)
				}
				leader.signal(syscall.SIGCONT)
				leader = standby
			}
			for _, trainer := range trainers {
				trainer.wantExit(0)
			}
			leader.wantExit(0)
			if h := j.wantExactlyOnce(passes, tasksPerPass); len(h.sessions) != len(trainers) {
				t.Errorf("%d trainers in the ledger, expected %d", len(h.sessions), len(trainers))
			}
		})
	}
}

// The failover bench measures every kind of fault. The test does not check the durations.
func TestFailoverBench(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"resign", "kill", "hang"} {
		got := run(t, t.TempDir(), "bench", "failover", "--mode", mode, "-n", "2", "--holddown", "2s", "-o", "json")
		if got.code != 0 {
			t.Fatalf("%s: exit code %d: %s", mode, got.code, got.stderr)
		}
		var figures struct {
			Mode  string  `json:"mode"`
			N     int     `json:"n"`
			P50MS float64 `json:"p50_ms"`
			P90MS float64 `json:"p90_ms"`
			P99MS float64 `json:"p99_ms"`
			MaxMS float64 `json:"max_ms"`
		}
		if err := json.Unmarshal([]byte(got.stdout), &figures); err != nil {
			t.Fatalf("%s: %v in %s", mode, err, got.stdout)
		}
		if figures.Mode != mode || figures.N != 2 || figures.P50MS <= 0 || figures.MaxMS < figures.P99MS || figures.P99MS < figures.P50MS {
			t.Errorf("%s: %+v", mode, figures)
		}
	}
}
