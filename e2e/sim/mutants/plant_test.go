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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var (
	histories = flag.Int("mutants.n", 10000, "maximum `number` of histories for each planted bug of the simulator")
	only      = flag.String("mutants.only", "", "plant only bugs with a name or fault that matches this `regexp`")
	limit     = flag.Duration("mutants.limit", 10*time.Minute, "time limit of the test or the histories of one bug; a bug that exceeds it is not caught")
)

func TestPlantedBugs(t *testing.T) {
	wanted, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	planted, survived := 0, 0
	try := func(fault string, m mutant, catch func(overlay string) string) {
		if !wanted.MatchString(m.Name) && (fault == "" || !wanted.MatchString(fault)) {
			return
		}
		planted++
		began := time.Now()
		overlay, by := plant(t, m)
		if overlay != "" {
			by = catch(overlay)
		}
		if strings.HasPrefix(by, "NOT CAUGHT") {
			survived++
		}
		line := fmt.Sprintf("%-3s %-56s %s (%.0f s)\n", fault, m.Name, by, time.Since(began).Seconds())
		table.WriteString(line)
		fmt.Print(line)
	}
	var unmodified sync.Once
	for _, m := range mutants {
		try("", m, func(overlay string) string {
			unmodified.Do(func() { // a failure without a bug would count as its discovery
				if by := simulate(t, mutant{}, writeOverlay(t, nil)); !strings.HasPrefix(by, "NOT CAUGHT in") {
					t.Fatalf("simulator without a bug: expected no failure, found: %s", by)
				}
			})
			return simulate(t, m, overlay)
		})
	}
	for _, g := range guards {
		try(g.Fault, g.mutant, func(overlay string) string { return runTest(t, g, overlay) })
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

// compile builds the tests of a package with the overlay. The programs that a test builds contain the bug as well, because
// they are built with the same GOFLAGS.
func compile(t *testing.T, overlay, pkg string) (program, out string, err error) {
	t.Helper()
	program = filepath.Join(filepath.Dir(overlay), "planted.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-o", program, "./"+pkg)
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
func run(t *testing.T, overlay, pkg, program string, args ...string) (out string, hung bool, err error) {
	t.Helper()
	interrupted, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(interrupted, *limit+lateness)
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
	if interrupted.Err() != nil {
		t.Fatal(context.Cause(interrupted))
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
func simulate(t *testing.T, m mutant, overlay string) string {
	t.Helper()
	const pkg = "e2e/sim"
	program, out, err := compile(t, overlay, pkg)
	if err != nil {
		return "NOT CAUGHT: it does not compile: " + out
	}
	out, hung, err := run(t, overlay, pkg, program, "-test.run", "^TestHistories$", "-sim.lines", "0", fmt.Sprintf("-sim.n=%d", *histories))
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
func runTest(t *testing.T, g guard, overlay string) string {
	t.Helper()
	pkg, test, _ := strings.Cut(g.Test, ".")
	program, out, err := compile(t, overlay, pkg)
	if err != nil {
		return "NOT CAUGHT: it does not compile: " + out
	}
	out, hung, err := run(t, overlay, pkg, program, "-test.v", "-test.run", "^"+strings.ReplaceAll(test, "/", "$/^")+"$")
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
