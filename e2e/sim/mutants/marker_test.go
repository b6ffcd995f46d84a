package mutants

import (
	"go/format"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeModule writes a module of one package with the source and returns its root.
func writeModule(t *testing.T, source string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pkg")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(dir)
}

func TestEditOfMarkedNodeChangesThatNodeAlone(t *testing.T) {
	for name, c := range map[string]struct {
		marked, want string
		edit         edit
	}{
		"remove a statement":               {"//guard:x\nf(1, 2)\ng()", "g()", remove()},
		"remove at the end of a line":      {"f(1, 2) //guard:x\ng()", "g()", remove()},
		"remove below a comment":           {"// why\n//guard:x\nf(1, 2)", "// why\n", remove()},
		"remove an element of a list":      {"_ = []int{\n1,\n//guard:x\n2,\n3,\n}", "_ = []int{\n1,\n3,\n}", remove()},
		"remove an argument":               {"f(\n//guard:x\n1,\n2)", "f(\n2)", remove()},
		"remove a key":                     {"_ = s{\n//guard:x\nA: f(1, 2),\n}", "_ = s{}", remove()},
		"remove a case":                    {"switch {\n//guard:x\ncase a:\nf()\ncase b:\n}", "switch {\ncase b:\n}", remove()},
		"insert before":                    {"//guard:x\ng()", "f()\ng()", whole("f()\n$")},
		"insert after":                     {"//guard:x\ng()", "g()\nf()", whole("$\nf()")},
		"a function of one line":           {"//guard:x\n_ = func() { g() }", "_ = func() { f() }", text("g()", "f()")},
		"condition":                        {"//guard:x\nif a && b || c {\n}", "if false {\n}", condition("false")},
		"condition negated":                {"//guard:x\nif a {\n}", "if !(a) {\n}", condition("!($)")},
		"condition without an operand":     {"//guard:x\nif a && b() && c {\n}", "if a && c {\n}", condition("$1 && $3")},
		"condition after a statement":      {"//guard:x\nif n := 1; n > 2 {\n}", "if n := 1; n >= 2 {\n}", condition("$1 >= $2")},
		"condition of an else":             {"if a {\n} else if b { //guard:x\n}", "if a {\n} else if true {\n}", condition("true")},
		"condition of a for":               {"//guard:x\nfor a {\n}", "for !a {\n}", condition("!$")},
		"condition without its not":        {"//guard:x\nif !a {\n}", "if a {\n}", condition("$1")},
		"one of the expressions of a case": {"switch a {\n//guard:x\ncase b, c:\n}", "switch a {\ncase c:\n}", condition("$2")},
		"communication of a case":          {"select {\n//guard:x\ncase <-a:\n}", "select {\ncase <-b:\n}", condition("<-b")},
		"assigned value":                   {"//guard:x\na := max(b, c)", "a := c", value("$2")},
		"argument of a call":               {"//guard:x\na := max(b, c)", "a := max(b, 0)", value("$0($1, 0)")},
		"results":                          {"//guard:x\nreturn a, b", "return a, nil", value("$1, nil")},
		"value of the first statement":     {"//guard:x\nif err := f(); err != nil {\n}", "if err := error(nil); err != nil {\n}", value("error(nil)")},
		"value of a constant":              {"//guard:x\nconst a = 1", "const a = 2", value("2")},
		"value of a constant in a group":   {"const (\na = 1\n//guard:x\nb = 1\n)", "const (\na = 1\nb = 2\n)", value("2")},
		"value of a key":                   {"_ = s{\n//guard:x\nA: 1,\n}", "_ = s{\nA: 1 + 1,\n}", value("$ + 1")},
		"deferred call":                    {"//guard:x\ndefer f(1)", "defer f(2)", value("$0(2)")},
		"text":                             {"//guard:x\nf(a.b)\nf(a.b)", "f(a.c)\nf(a.b)", text("a.b", "a.c")},
	} {
		t.Run(name, func(t *testing.T) {
			const before, after = "package p\n\nfunc p() {\n", "\n}\n"
			found, err := findMarkers(writeModule(t, before+c.marked+after))
			if err != nil {
				t.Fatal(err)
			}
			got, err := found["x"].apply(c.edit)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := tidy(t, string(got)), tidy(t, before+c.want+after); got != want {
				t.Errorf("found:\n%s\nexpected:\n%s", got, want)
			}
		})
	}
}

// tidy returns the source as gofmt writes it, without markers and empty lines.
func tidy(t *testing.T, source string) string {
	t.Helper()
	formatted, err := format.Source([]byte(strings.ReplaceAll(source, "//guard:x", "")))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(formatted)) {
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, ""), "{\n\t}", "{}")
}

func TestUnusableMarkerOrEditIsReported(t *testing.T) {
	const marked = "package p\n\n//guard:a\nvar a = 1\n"
	bug := func(marker string, e edit) mutant { return mutant{Name: "n " + marker, Marker: marker, Edit: e} }
	for name, c := range map[string]struct {
		source string
		bugs   []mutant
		want   string
	}{
		"marker without a bug":     {marked, nil, "marker a has no bug"},
		"bug without a marker":     {marked, []mutant{bug("a", value("2")), bug("b", remove())}, "no comment //guard:b"},
		"two bugs with one name":   {marked, []mutant{bug("a", value("2")), bug("a", remove())}, `bug "n a": name is not unique`},
		"edit without a change":    {marked, []mutant{bug("a", value("$"))}, "the edit changes nothing"},
		"edit that does not parse": {marked, []mutant{bug("a", value("2 +"))}, "the edit does not parse"},
		"part that is missing":     {marked, []mutant{bug("a", condition("false"))}, "has no such part"},
		"operand that is missing":  {marked, []mutant{bug("a", value("$1"))}, "has no operand $1"},
		"text that is missing":     {marked, []mutant{bug("a", text("2", "3"))}, "expected once in the marked *ast.GenDecl, found 0 times"},
		"text that occurs twice":   {marked, []mutant{bug("a", text("a", "b"))}, "found 2 times"},
		"two markers of one name":  {marked + "\n//guard:a\nvar b = 1\n", []mutant{bug("a", value("2"))}, "marker a is also in"},
		"marker without code":      {marked + "\n//guard:b\n\nvar b = 1\n", []mutant{bug("a", value("2"))}, "marker b: no code begins"},
		"marker with another name": {marked + "\n//guard:B_c\nvar b = 1\n", []mutant{bug("a", value("2"))}, `marker "B_c": expected words`},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := findMarkers(writeModule(t, c.source))
			if err == nil {
				err = checkLists(found, c.bugs)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("found %v, expected an error with %q", err, c.want)
			}
		})
	}
}

func TestMarkersInTestsAreIgnored(t *testing.T) {
	root := writeModule(t, "package p\n\nvar _ = \"//guard:text\"\n")
	if err := os.WriteFile(filepath.Join(root, "p_test.go"), []byte("package p\n\n//guard:test\nvar a = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := findMarkers(root); err != nil || len(found) > 0 {
		t.Errorf("found %v, %v, expected no marker", found, err)
	}
}
