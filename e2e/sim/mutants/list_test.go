package mutants

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the project's, seen from this folder.
const root = "../../.."

// Each bug can be planted: its text stands once in its file, and the bug changes it.
func TestBugsCanBePlanted(t *testing.T) {
	all := mutants
	for _, g := range guards {
		all = append(all[:len(all):len(all)], g.mutant)
	}
	names := map[string]bool{}
	for _, m := range all {
		if names[m.Name] {
			t.Errorf("two bugs are called %q", m.Name)
		}
		names[m.Name] = true
		source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.File)))
		if err != nil {
			t.Error(err)
			continue
		}
		if n := strings.Count(string(source), m.Old); n != 1 || m.Old == m.New {
			t.Errorf("%s: %s has the text %d times, expected once, and to be changed", m.Name, m.File, n)
		}
	}
}

// Each row of docs/faults.md that tests stand behind has a bug that takes out its guard, and each such bug is caught by a test of its row.
func TestEveryRowHasItsBug(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{} // by fault: the cell of its tests
	for _, m := range regexp.MustCompile(`(?m)^\| (F\d+) \|.*\| ([^|]*)\|$`).FindAllStringSubmatch(string(page), -1) {
		rows[m[1]] = m[2]
	}
	if len(rows) == 0 {
		t.Fatal("docs/faults.md has no rows")
	}
	guarded := map[string]bool{}
	for _, g := range guards {
		guarded[g.Fault] = true
		if !strings.Contains(rows[g.Fault], "`"+g.Test+"`") {
			t.Errorf("%s: the row %s of docs/faults.md does not name %s", g.Name, g.Fault, g.Test)
		}
	}
	for fault, tests := range rows {
		if strings.Contains(tests, "`") && !guarded[fault] {
			t.Errorf("no bug takes out the guard behind %s", fault)
		}
	}
}
