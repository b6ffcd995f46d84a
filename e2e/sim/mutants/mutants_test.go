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
	"testing"
	"time"
)

var (
	histories = flag.Int("mutants.n", 10000, "histories for each planted bug, at most")
	only      = flag.String("mutants.only", "", "plant only the bugs whose names match this regular expression")
)

// caught is how a history that broke an invariant ends.
var caught = regexp.MustCompile(`history (\d+): invariant: ([^:]+):`)

func TestPlantedBugs(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	planted, survived := 0, 0
	for _, m := range mutants {
		if !wanted.MatchString(m.Name) {
			continue
		}
		planted++
		began := time.Now()
		by := plant(t, root, m)
		if strings.HasPrefix(by, "NOT CAUGHT") {
			survived++
		}
		line := fmt.Sprintf("%-52s %s (%.0f s)\n", m.Name, by, time.Since(began).Seconds())
		table.WriteString(line)
		fmt.Print(line)
	}
	if survived > 0 || planted == 0 {
		t.Fatalf("%d of %d planted bugs were not caught:\n%s", survived, planted, table.String())
	}
}

// plant builds the simulator with one bug and runs it; it returns what caught the bug.
func plant(t *testing.T, root string, m mutant) string {
	t.Helper()
	original := filepath.Join(root, m.File)
	source, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.Old); n != 1 {
		return fmt.Sprintf("NOT CAUGHT: %s has the text %d times, expected once: mend the list", m.File, n)
	}
	dir := t.TempDir()
	mutated, overlay, program := filepath.Join(dir, filepath.Base(m.File)), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mutated, []byte(strings.Replace(string(source), m.Old, m.New, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", program, "./e2e/sim")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Sprintf("NOT CAUGHT: it does not compile: %s", out)
	}
	run := exec.CommandContext(t.Context(), program, "-test.run", "^TestHistories$", "-test.timeout", "5m", "-sim.lines", "0", fmt.Sprintf("-sim.n=%d", *histories))
	out, err := run.CombinedOutput()
	match := caught.FindStringSubmatch(string(out))
	switch {
	case match != nil:
		return fmt.Sprintf("history %s: %s", match[1], match[2])
	case err == nil:
		return fmt.Sprintf("NOT CAUGHT in %d histories: %s", *histories, m.Breaks)
	}
	return fmt.Sprintf("NOT CAUGHT by an invariant: %.300s", out)
}
