package trainmaster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Three pages name tests for what they say: each row names one at least, and each one is there.
func TestPagesHaveTheirTests(t *testing.T) {
	for page, least := range map[string]int{"docs/protocols.md": 60, "docs/guarantees.md": 55, "docs/faults.md": 100} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		named := testNames.FindAllStringSubmatch(string(text), -1)
		if len(named) < least {
			t.Errorf("%s names %d tests, expected %d at least", page, len(named), least)
		}
		for _, m := range named {
			if !thereIs(t, m[1], m[2], m[3]) {
				t.Errorf("%s names %s, which is not there", page, m[0])
			}
		}
		body := false // of a table: below its head
		for line := range strings.Lines(string(text)) {
			switch {
			case !strings.HasPrefix(line, "|"):
				body = false
			case strings.HasPrefix(line, "|---"):
				body = true
			case body && !testNames.MatchString(line) && !strings.Contains(line, "*Open*"):
				t.Errorf("%s has a row without a test: %s", page, line)
			}
		}
	}
}

// The faults up to F65 have their rows in this order, and none is left out. Each later one has one row.
func TestEveryFaultHasItsRow(t *testing.T) {
	text, err := os.ReadFile("docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	later := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (F\d+) \|`).FindAllStringSubmatch(string(text), -1) {
		if n, _ := strconv.Atoi(m[1][1:]); n <= 65 {
			rows = append(rows, m[1])
		} else if later[m[1]] {
			t.Errorf("two rows are called %s", m[1])
		} else {
			later[m[1]] = true
		}
	}
	var want []string
	for _, section := range [][2]int{{1, 33}, {40, 44}, {50, 59}, {60, 65}} {
		for n := section[0]; n <= section[1]; n++ {
			want = append(want, fmt.Sprintf("F%d", n))
		}
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the rows are %v, expected %v", rows, want)
	}
}

// testNames finds `package.TestName`, and `package.TestScenarios/file`.
var testNames = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)(?:/([a-z_]+))?`")

// thereIs reports whether a package has a test; trainmaster is the package at the root.
func thereIs(t *testing.T, pkg, test, scenario string) bool {
	t.Helper()
	dir := filepath.FromSlash(pkg)
	if pkg == "trainmaster" {
		dir = "."
	}
	if scenario != "" {
		if _, err := os.Stat(filepath.Join(dir, "testdata", "scenarios", scenario+".txt")); err != nil {
			return false
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(source), "\nfunc "+test+"(") {
			return true
		}
	}
	return false
}
