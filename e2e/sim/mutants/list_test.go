package mutants

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// root is the root of the module, relative to this directory.
const root = "../../.."

// all returns the bugs of both lists.
func all() []mutant {
	list := slices.Clone(mutants)
	for _, g := range guards {
		list = append(list, g.mutant)
	}
	return list
}

var foundMarkers = sync.OnceValues(func() (map[string]marker, error) { return findMarkers(root) })

// markers returns the markers of the module.
func markers(t *testing.T) map[string]marker {
	t.Helper()
	found, err := foundMarkers()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestBugsCanBePlanted(t *testing.T) {
	if err := checkLists(markers(t), all()); err != nil {
		t.Error(err)
	}
}

// A row without tests needs no bug.
func TestEachRowWithTestsHasABug(t *testing.T) {
	var page []byte
	for _, name := range []string{"faults.md", "faults-kubernetes.md", "faults-ring.md", "faults-evaluation.md", "faults-python.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		page = append(page, text...)
	}
	rows := map[string]string{} // fault: cell with its tests
	for _, m := range regexp.MustCompile(`(?m)^\| (F\d+) \|.*\| ([^|]*)\|$`).FindAllStringSubmatch(string(page), -1) {
		rows[m[1]] = m[2]
	}
	if len(rows) == 0 {
		t.Fatal("docs/faults*.md have no rows")
	}
	guarded := map[string]bool{}
	for _, g := range guards {
		guarded[g.Fault] = true
		if !strings.Contains(rows[g.Fault], "`"+g.Test+"`") {
			t.Errorf("%s: the row %s of docs/faults*.md does not name %s", g.Name, g.Fault, g.Test)
		}
	}
	// scripts/python.sh planted plants the bugs of the Python package.
	planted, err := os.ReadFile(filepath.Join(root, "python", "tests", "planted.py"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`Bug\(\s*"(F\d+)"`).FindAllStringSubmatch(string(planted), -1) {
		guarded[m[1]] = true
	}
	for fault, tests := range rows {
		if strings.Contains(tests, "`") && !guarded[fault] {
			t.Errorf("%s: expected a bug that removes its guard, found none", fault)
		}
	}
}
