package trainmaster

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The page of protocols names the test of each rule; each of them is there.
func TestProtocolsHaveTheirTests(t *testing.T) {
	page, err := os.ReadFile("docs/protocols.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z0-9/]+)\\.(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1)
	if len(named) < 60 {
		t.Fatalf("the page names %d tests", len(named))
	}
	for _, m := range named {
		files, err := filepath.Glob(filepath.Join(filepath.FromSlash(m[1]), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(source), "\nfunc "+m[2]+"(")
		}
		if !found {
			t.Errorf("%s has no %s", m[1], m[2])
		}
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| rule") && !strings.Contains(line, ".Test") {
			t.Errorf("a rule without a test: %s", line)
		}
	}
}
