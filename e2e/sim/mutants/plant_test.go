//go:build mutants

package mutants

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

var (
	histories = flag.Int("mutants.n", 10000, "maximum `number` of histories for each planted bug of the simulator")
	only      = flag.String("mutants.only", "", "plant only bugs with a name or fault that matches this `regexp`")
	limit     = flag.Duration("mutants.limit", 20*time.Minute, "time limit of the test or the histories of one bug; a bug that exceeds it is not caught")
	jobs      = flag.Int("mutants.jobs", runtime.NumCPU(), "`number` of bugs that are tried at the same time")
)

func TestPlantedBugs(t *testing.T) {
	wanted, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu                sync.Mutex
		table             strings.Builder
		planted, survived int
	)
	interrupted, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	tries, ctx := errgroup.WithContext(interrupted)
	tries.SetLimit(*jobs)
	try := func(fault string, m mutant, catch func(overlay string) string) {
		if ctx.Err() != nil || !wanted.MatchString(m.Name) && (fault == "" || !wanted.MatchString(fault)) {
			return
		}
		planted++
		overlay, by := plant(t, m)
		tries.Go(func() error {
			began := time.Now()
			if overlay != "" {
				by = catch(overlay)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			line := fmt.Sprintf("%-3s %-56s %s (%.0f s)\n", fault, m.Name, by, time.Since(began).Seconds())
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(by, "NOT CAUGHT") {
				survived++
				table.WriteString(line)
			}
			fmt.Print(line)
			return nil
		})
	}
	unmodified := writeOverlay(t, nil)
	checkUnmodified := sync.OnceFunc(func() { // a failure without a bug would count as its discovery
		tries.Go(func() error {
			if by := simulate(ctx, mutant{}, unmodified); !strings.HasPrefix(by, "NOT CAUGHT in") {
				return fmt.Errorf("simulator without a bug: expected no failure, found: %s", by)
			}
			return nil
		})
	})
	for _, m := range mutants {
		try("", m, func(overlay string) string { return simulate(ctx, m, overlay) })
		if planted > 0 {
			checkUnmodified()
		}
	}
	for _, g := range guards {
		try(g.Fault, g.mutant, func(overlay string) string { return runTest(ctx, g, overlay) })
	}
	if err := tries.Wait(); err != nil {
		t.Fatal(err)
	}
	if survived > 0 || planted == 0 {
		t.Fatalf("%d of %d planted bugs were not caught:\n%s", survived, planted, table.String())
	}
}

// plant writes an overlay with one bug. If the edit does not apply, overlay is empty and why names the reason.
func plant(t *testing.T, m mutant) (overlay, why string) {
	t.Helper()
	planted, err := apply(markers(t), m)
	if err != nil {
		return "", fmt.Sprintf("NOT CAUGHT: %v: correct the list", err)
	}
	original, err := filepath.Abs(markers(t)[m.Marker].file)
	if err != nil {
		t.Fatal(err)
	}
	mutated := filepath.Join(t.TempDir(), filepath.Base(original))
	if err := os.WriteFile(mutated, planted, 0o600); err != nil {
		t.Fatal(err)
	}
	return writeOverlay(t, map[string]string{original: mutated}), ""
}

// writeOverlay writes an overlay that maps each original file to its replacement.
func writeOverlay(t *testing.T, replace map[string]string) string {
	t.Helper()
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// compile builds the tests of a package with the overlay; run removes the program. The programs that a test builds contain the bug as well, because
// they are built with the same GOFLAGS.
func compile(ctx context.Context, overlay, pkg string) (program, out string, err error) {
	program = filepath.Join(filepath.Dir(overlay), "planted.test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", program, "./"+pkg)
	cmd.Dir, cmd.Env = root, environment(overlay)
	text, err := cmd.CombinedOutput()
	return program, string(text), err
}

// environment clears REQUIRE: a test that fails because a tool is missing would count as a caught bug. It is skipped instead.
func environment(overlay string) []string {
	return append(os.Environ(), strings.TrimSpace("GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay), "REQUIRE=")
}

// lateness is the time after the limit until a test that does not end itself is killed.
const lateness = 10 * time.Second

// run runs compiled tests in the directory of their package until the first failure. Further tests could each wait a long
// time because of the bug. When run returns, the tests and all processes that they started have ended.
func run(ctx context.Context, overlay, pkg, program string, args ...string) (out string, hung bool, err error) {
	defer func() { _ = os.Remove(program) }()
	ctx, cancel := context.WithTimeout(ctx, *limit+lateness)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{"-test.timeout", limit.String(), "-test.failfast"}, args...)...)
	cmd.Dir, cmd.Env = filepath.Join(root, filepath.FromSlash(pkg)), environment(overlay)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	killAll := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = killAll, lateness
	text, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = killAll()
	}
	return string(text), ctx.Err() != nil || timedOut.Match(text), err
}

var (
	// brokenInvariant matches the failure of a history that found a bug.
	brokenInvariant = regexp.MustCompile(`history (\d+): invariant: ([^:]+):`)
	timedOut        = regexp.MustCompile(`(?m)^panic: test timed out after `)
	crashed         = regexp.MustCompile(`(?m)^(panic|fatal error): .*`)
	assertion       = regexp.MustCompile(`(?m)^ +(\w+\.go:\d+: .*)`)
	skipped         = regexp.MustCompile(`(?m)^ *--- SKIP: (\S+)`)
)

// simulate runs histories until one finds the bug. It returns the number of the history and the invariant.
func simulate(ctx context.Context, m mutant, overlay string) string {
	const pkg = "e2e/sim"
	program, out, err := compile(ctx, overlay, pkg)
	if err != nil {
		return "NOT CAUGHT: it does not compile: " + out
	}
	out, hung, err := run(ctx, overlay, pkg, program, "-test.run", "^TestHistories$", "-sim.lines", "0", fmt.Sprintf("-sim.n=%d", *histories))
	match := brokenInvariant.FindStringSubmatch(out)
	switch {
	case match != nil:
		return fmt.Sprintf("history %s: %s", match[1], match[2])
	case hung:
		return fmt.Sprintf("NOT CAUGHT: histories did not end within %s: %s", *limit, m.Breaks)
	case err == nil:
		return fmt.Sprintf("NOT CAUGHT in %d histories: %s", *histories, m.Breaks)
	}
	return fmt.Sprintf("NOT CAUGHT by an invariant: %.300s", out)
}

// runTest runs the test that must catch the bug, and returns its first failure.
func runTest(ctx context.Context, g guard, overlay string) string {
	pkg, test, _ := strings.Cut(g.Test, ".")
	program, out, err := compile(ctx, overlay, pkg)
	if err != nil {
		return "NOT CAUGHT: it does not compile: " + out
	}
	out, hung, err := run(ctx, overlay, pkg, program, "-test.v", "-test.run", "^"+strings.ReplaceAll(test, "/", "$/^")+"$")
	failed := strings.Contains(out, "--- FAIL: "+test)
	crash := crashed.FindString(out)
	said := assertion.FindStringSubmatch(out)
	switch {
	case err == nil && skipped.MatchString(out):
		return fmt.Sprintf("NOT CAUGHT: %s was skipped, `make setup` and root may help: %s", skipped.FindStringSubmatch(out)[1], out)
	case err == nil:
		return fmt.Sprintf("NOT CAUGHT by %s: %s", g.Test, g.Breaks)
	case hung:
		return fmt.Sprintf("NOT CAUGHT by an assertion: %s did not end within %s: %s", g.Test, *limit, g.Breaks)
	case crash != "":
		return fmt.Sprintf("NOT CAUGHT by an assertion of %s: %s", g.Test, crash)
	case !failed || said == nil:
		return fmt.Sprintf("NOT CAUGHT by an assertion of %s: %.600s", g.Test, out)
	}
	return fmt.Sprintf("%s: %.100s", g.Test, said[1])
}
