package trainmaster

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A time.Sleep in a test has its reason in a comment on its line or on the line above. A sleep in virtual time needs
// none: it is in a function literal that is passed to synctest.Test, or to a test helper that calls synctest.Test.
func TestSleepsInTestsHaveReasons(t *testing.T) {
	bubbles := map[string]bool{} // directory + name of a helper that calls synctest.Test
	files := map[string]*ast.File{}
	set := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "testdata") {
			return errOrSkip(err)
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path) // recorded by the cache of test results
		if err != nil {
			return err
		}
		if files[path], err = parser.ParseFile(set, path, source, parser.ParseComments); err != nil {
			return err
		}
		for _, decl := range files[path].Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && callsSynctest(f) {
				bubbles[filepath.Dir(path)+" "+f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, file := range files {
		commented := map[int]bool{}
		for _, group := range file.Comments {
			commented[set.Position(group.End()).Line] = true
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if name := calledName(call); name == "synctest.Test" || bubbles[filepath.Dir(path)+" "+name] {
				return false
			}
			line := set.Position(call.Pos()).Line
			if calledName(call) == "time.Sleep" && !commented[line] && !commented[line-1] {
				t.Errorf("%s:%d: time.Sleep: expected a comment with its reason, found none: wait for a condition, or add the reason", path, line)
			}
			return true
		})
	}
}

// errOrSkip returns err, or fs.SkipDir without an error.
func errOrSkip(err error) error {
	if err != nil {
		return err
	}
	return fs.SkipDir
}

// callsSynctest reports whether a function calls synctest.Test.
func callsSynctest(f *ast.FuncDecl) (calls bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		calls = calls || ok && calledName(call) == "synctest.Test"
		return !calls
	})
	return calls
}

// calledName returns the name of a called function: f or pkg.F.
func calledName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}
