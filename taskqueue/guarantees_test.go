package taskqueue

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The page of guarantees names the test of each clause; each of them is there.
func TestGuaranteesHaveTheirTests(t *testing.T) {
	page, err := os.ReadFile("../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)(?:/([a-z_]+))?`").FindAllStringSubmatch(string(page), -1)
	if len(named) < 40 {
		t.Fatalf("the page names %d tests", len(named))
	}
	for _, m := range named {
		files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(m[1]), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(b), "\nfunc "+m[2]+"(")
		}
		if !found {
			t.Errorf("%s has no %s", m[1], m[2])
		}
		if m[3] != "" {
			if _, err := os.Stat(filepath.Join("testdata", "scenarios", m[3]+".txt")); err != nil {
				t.Errorf("%s/%s: %v", m[2], m[3], err)
			}
		}
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| promised") && !strings.Contains(line, ".Test") && !strings.Contains(line, ".Fuzz") {
			t.Errorf("a clause without a test: %s", line)
		}
	}
}
