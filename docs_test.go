package trainmaster

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Each row of these pages names at least one test, and each named test exists.
func TestPagesHaveTheirTests(t *testing.T) {
	for page, least := range map[string]int{
		"docs/protocols.md": 60, "docs/protocols-steps.md": 40, "docs/protocols-leadership.md": 20, "docs/guarantees.md": 55, "docs/faults.md": 100,
		"docs/faults-kubernetes.md": 15, "docs/faults-ring.md": 12, "docs/faults-evaluation.md": 15, "docs/faults-python.md": 8,
	} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		named := testNames.FindAllStringSubmatch(string(text), -1)
		python := pythonTests.FindAllStringSubmatch(string(text), -1)
		if n := len(named) + len(python); n < least {
			t.Errorf("%s names %d tests, expected %d at least", page, n, least)
		}
		for _, m := range python {
			if source, err := os.ReadFile("python/tests/" + m[1] + ".py"); err != nil || !strings.Contains(string(source), "\ndef "+m[2]+"(") {
				t.Errorf("%s names %s, which does not exist", page, m[0])
			}
		}
		for _, m := range named {
			if !thereIs(t, m[1], m[2], m[3]) {
				t.Errorf("%s names %s, which does not exist", page, m[0])
			}
		}
		body := false // of a table: below its head
		for line := range strings.Lines(string(text)) {
			switch {
			case !strings.HasPrefix(line, "|"):
				body = false
			case strings.HasPrefix(line, "|---"):
				body = true
			case body && !testNames.MatchString(line) && !pythonTests.MatchString(line) && !strings.Contains(line, "*Open*"):
				t.Errorf("%s has a row without a test: %s", page, line)
			}
		}
	}
}

// The pages docs/architecture*.md name functions in rows of tables (`type.name` | `file`), as `file` (`name`, `name`) and as `type.name` in
// `file`. Each file exists and declares them. Each package that it names exists.
func TestArchitectureNamesFunctionsThatExist(t *testing.T) {
	var text string
	for _, page := range []string{"docs/architecture.md", "docs/architecture-events.md", "docs/architecture-ways.md", "docs/architecture-kubernetes.md"} {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text += string(data)
	}
	rows := regexp.MustCompile("(?m)^\\| `(\\w+)\\.(\\w+)` \\| `([\\w/]+\\.go)` \\|").FindAllStringSubmatch(text, -1)
	if len(rows) < 90 {
		t.Fatalf("found %d functions in tables, expected 90 at least", len(rows))
	}
	for _, m := range rows {
		wantFunction(t, m[3], m[1], m[2])
	}
	lists := regexp.MustCompile("`([\\w/]+\\.go)` \\((`\\w+`(?:, `\\w+`)*)\\)").FindAllStringSubmatch(text, -1)
	if len(lists) < 8 {
		t.Fatalf("found %d lists of functions, expected 8 at least", len(lists))
	}
	for _, m := range lists {
		for name := range strings.SplitSeq(m[2], ", ") {
			wantFunction(t, m[1], "", strings.Trim(name, "`"))
		}
	}
	for _, m := range regexp.MustCompile("`(?:(\\w+)\\.)?(\\w+)` in\\s`([\\w/]+\\.go)`").FindAllStringSubmatch(text, -1) {
		wantFunction(t, m[3], m[1], m[2])
	}
	for _, m := range regexp.MustCompile("`((?:[\\w-]+/)+[\\w-]+(?:\\.go|\\.proto)?)`").FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("docs/architecture*.md: %v", err)
		}
	}
}

// wantFunction requires a declaration of the function in the file; receiver "": any.
func wantFunction(t *testing.T, path, receiver, name string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return
	}
	if !slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		return ok && f.Name.Name == name && (receiver == "" || f.Recv != nil && receiverOf(f) == receiver)
	}) {
		t.Errorf("docs/architecture*.md name %s, which is not in %s", strings.TrimPrefix(receiver+"."+name, "."), path)
	}
}

// receiverOf is the name of the type that has the method.
func receiverOf(f *ast.FuncDecl) string {
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}

// The faults up to F65 have their rows in this order, and none is left out. Each later one has one row.
func TestEveryFaultHasItsRow(t *testing.T) {
	text, err := os.ReadFile("docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"docs/faults-kubernetes.md", "docs/faults-ring.md", "docs/faults-evaluation.md", "docs/faults-python.md"} {
		more, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, more...)
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

// pythonTests finds `python.test_file.test_name`.
var pythonTests = regexp.MustCompile("`python\\.(test_\\w+)\\.(test_\\w+)`")

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

// markdown lists the Markdown files of the repository.
func markdown(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !d.IsDir() && filepath.Ext(path) == ".md":
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var (
	links       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headings    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	linkText    = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns the names of the sections of a Markdown file, as GitHub makes them.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, m := range headings.FindAllStringSubmatch(text, -1) {
		name := strings.ToLower(linkText.ReplaceAllString(strings.TrimSpace(m[1]), "$1"))
		names[strings.ReplaceAll(notInAnchor.ReplaceAllString(name, ""), " ", "-")] = true
	}
	return names
}

func TestMarkdownLinksResolve(t *testing.T) {
	checked := 0
	for _, file := range markdown(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range links.FindAllStringSubmatch(string(text), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			checked++
			path := file
			if target != "" {
				path = filepath.Join(filepath.Dir(file), target)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: link %s: %v", file, m[1], err)
				continue
			}
			if anchor == "" {
				continue
			}
			section, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !anchors(string(section))[anchor] {
				t.Errorf("%s: link %s: no section with this name", file, m[1])
			}
		}
	}
	if checked < 100 {
		t.Errorf("checked %d links, expected 100 at least", checked)
	}
}

func TestMarkdownNamesTestsThatExist(t *testing.T) {
	for _, file := range markdown(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testNames.FindAllStringSubmatch(string(text), -1) {
			if !thereIs(t, m[1], m[2], m[3]) {
				t.Errorf("%s names %s, which does not exist", file, m[0])
			}
		}
	}
}

// A page is at most 200 lines, so that a reader finds its subject. Reference tables are read by search.
func TestPagesAreShort(t *testing.T) {
	const most = 200
	reference := map[string]bool{
		"docs/reference.md": true, "docs/keys.md": true, "docs/formats/net-rpc.md": true, "docs/formats/parameter-server-wire.md": true,
		"docs/formats/parameter-server-checkpoint.md": true,
	}
	for _, page := range markdown(t) {
		if page != "README.md" && !strings.HasPrefix(page, "docs/") {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); n > most && !reference[page] {
			t.Errorf("%s: expected at most %d lines, found %d: split the page", page, most, n)
		}
	}
}
