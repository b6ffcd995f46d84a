package trainmaster

import (
	"cmp"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// public lists the packages that programs outside this repository import. docs/architecture.md names them.
var public = []string{
	"trainer", "trainer/params", "pserver/optimizer", // a training program
	"recordio", "dataset", "dataset/sample", "dataset/convert", "dataset/tfrecord", // its data
	"taskqueue", "ledger", "ledger/verify", "etcdstore", // the state and the history of a job
}

// A user starts from the package comment and from an Example.
func TestPublicPackageHasDocAndExample(t *testing.T) {
	for _, dir := range public {
		fset := token.NewFileSet()
		parse := func(pattern string) (files []*ast.File) {
			names, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, file)
			}
			return files
		}
		var comment string
		for _, file := range parse("*.go") {
			comment = cmp.Or(comment, file.Doc.Text())
		}
		if want := "Package " + path.Base(dir) + " implements "; !strings.HasPrefix(comment, want) {
			t.Errorf("%s: expected a package comment that begins with %q, found %.60q", dir, want, comment)
		}
		examples := doc.Examples(parse("example_test.go")...)
		if len(examples) == 0 {
			t.Errorf("%s/example_test.go: expected an Example, found none", dir)
		}
		for _, example := range examples {
			if example.Doc == "" {
				t.Errorf("%s: Example%s: expected a comment, found none", dir, example.Name)
			}
		}
	}
}
