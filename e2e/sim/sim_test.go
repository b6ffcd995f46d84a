package sim

import (
	"errors"
	"flag"
	"testing"
)

var (
	histories = flag.Int("sim.n", 2000, "how many histories to run")
	first     = flag.Uint64("sim.first", 1, "seed of the first one")
	one       = flag.Uint64("sim.seed", 0, "run this seed alone, and print its last events")
	lines     = flag.Int("sim.lines", 80, "how many events to print")
)

func TestHistories(t *testing.T) {
	if *one != 0 {
		result, err := Run(*one, true)
		for _, line := range result.Trace[max(0, len(result.Trace)-*lines):] {
			t.Log(line)
		}
		if err != nil {
			t.Fatalf("seed %d: %v", *one, err)
		}
		t.Logf("seed %d: %d commits in %d terms, %v", *one, result.Commits, result.Terms, result.Virtual)
		return
	}
	n := *histories
	if testing.Short() {
		n = min(n, 200)
	}
	commits, terms := 0, 0
	for i := range n {
		seed := *first + uint64(i)
		result, err := Run(seed, false)
		if err != nil {
			kind := "broken"
			if _, ok := errors.AsType[*Violation](err); ok {
				kind = "invariant"
			}
			t.Fatalf("seed %d, history %d: %s: %v\n%s\nreplay: go test ./e2e/sim -run TestHistories -sim.seed=%d -v", seed, i+1, kind, err, Explain(seed, *lines), seed)
		}
		commits += result.Commits
		terms += result.Terms
	}
	t.Logf("%d histories, %d commits, %d terms", n, commits, terms)
}
