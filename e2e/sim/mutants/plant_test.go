//go:build mutants

package mutants

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	histories = flag.Int("mutants.n", 10000, "histories for each planted bug of the simulator, at most")
	only      = flag.String("mutants.only", "", "plant only the bugs whose names, or faults, match this regular expression")
)

func TestPlantedBugs(t *testing.T) {
	wanted, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	planted, survived := 0, 0
	see := func(fault string, m mutant, catch func(overlay string) string) {
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
	var sound sync.Once
	for _, m := range mutants {
		see("", m, func(overlay string) string {
			sound.Do(func() { // else it would find what was not planted
				if by := simulate(t, mutant{}, writeOverlay(t, nil)); !strings.HasPrefix(by, "NOT CAUGHT in") {
					t.Fatalf("without a bug the simulator says: %s", by)
				}
			})
			return simulate(t, m, overlay)
		})
	}
	for _, g := range guards {
		see(g.Fault, g.mutant, func(overlay string) string { return runTest(t, g, overlay) })
	}
	if survived > 0 || planted == 0 {
		t.Fatalf("%d of %d planted bugs were not caught:\n%s", survived, planted, table.String())
	}
}

// plant writes an overlay with one bug; without one it says why.
func plant(t *testing.T, m mutant) (overlay, why string) {
	t.Helper()
	original, err := filepath.Abs(filepath.Join(root, filepath.FromSlash(m.File)))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.Old); n != 1 {
		return "", fmt.Sprintf("NOT CAUGHT: %s has the text %d times, expected once: mend the list", m.File, n)
	}
	mutated := filepath.Join(t.TempDir(), filepath.Base(m.File))
	if err := os.WriteFile(mutated, []byte(strings.Replace(string(source), m.Old, m.New, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return writeOverlay(t, map[string]string{original: mutated}), ""
}

// writeOverlay writes which files take the place of which.
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

// goTool runs the go command at the root. The programs that a test builds have the bug too: they are built by the same GOFLAGS.
// A test that lacks something is to skip, whatever is required of others: its complaint catches no bug.
func goTool(t *testing.T, overlay string, args ...string) (out string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), strings.TrimSpace("GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay), "REQUIRE=")
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// brokenInvariant is how a history ends that found a bug.
var brokenInvariant = regexp.MustCompile(`history (\d+): invariant: ([^:]+):`)

// simulate runs histories until one finds the bug; it returns what caught it.
func simulate(t *testing.T, m mutant, overlay string) string {
	t.Helper()
	program := filepath.Join(filepath.Dir(overlay), "sim.test")
	if out, err := goTool(t, overlay, "test", "-c", "-vet=off", "-o", program, "./e2e/sim"); err != nil {
		return "NOT CAUGHT: it does not compile: " + out
	}
	run := exec.CommandContext(t.Context(), program, "-test.run", "^TestHistories$", "-test.timeout", "10m", "-sim.lines", "0", fmt.Sprintf("-sim.n=%d", *histories))
	out, err := run.CombinedOutput()
	match := brokenInvariant.FindStringSubmatch(string(out))
	switch {
	case match != nil:
		return fmt.Sprintf("history %s: %s", match[1], match[2])
	case err == nil:
		return fmt.Sprintf("NOT CAUGHT in %d histories: %s", *histories, m.Breaks)
	}
	return fmt.Sprintf("NOT CAUGHT by an invariant: %.300s", out)
}

var (
	crashed   = regexp.MustCompile(`(?m)^(panic|fatal error): .*`)
	assertion = regexp.MustCompile(`(?m)^ +(\w+\.go:\d+: .*)`)
)

// runTest runs the one test of a row that is to catch the bug; it returns what it said.
func runTest(t *testing.T, g guard, overlay string) string {
	t.Helper()
	pkg, test, _ := strings.Cut(g.Test, ".")
	run := "^" + strings.ReplaceAll(test, "/", "$/^") + "$"
	out, err := goTool(t, overlay, "test", "-count=1", "-vet=off", "-timeout", "5m", "-run", run, "./"+pkg)
	failed := strings.Contains(out, "--- FAIL: "+test)
	crash := crashed.FindString(out)
	said := assertion.FindStringSubmatch(out)
	switch {
	case err == nil:
		return fmt.Sprintf("NOT CAUGHT by %s: %s", g.Test, g.Breaks)
	case strings.Contains(out, "[build failed]"):
		return "NOT CAUGHT: it does not compile: " + out
	case crash != "":
		return fmt.Sprintf("NOT CAUGHT by an assertion of %s: %s", g.Test, crash)
	case !failed || said == nil:
		return fmt.Sprintf("NOT CAUGHT by an assertion of %s: %.600s", g.Test, out)
	}
	return fmt.Sprintf("%s: %.100s", g.Test, said[1])
}
