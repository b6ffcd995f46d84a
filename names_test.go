package trainmaster

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// firstWord matches the start of a comment up to its first word. An article can precede the word.
var firstWord = regexp.MustCompile(`^(?:(?:An?|The) )?\[?(\w*)`)

// TestCommentsBeginWithTheName checks the comments of functions, types, errors and single variables: a rename must change them too.
func TestCommentsBeginWithTheName(t *testing.T) {
	check := func(file string, doc *ast.CommentGroup, name *ast.Ident, strict bool) {
		if doc == nil || strings.TrimSpace(doc.Text()) == "" {
			return
		}
		word := firstWord.FindStringSubmatch(doc.Text())[1]
		looksLikeName := word != strings.ToLower(word) && word != strings.ToUpper(word[:1])+strings.ToLower(word[1:])
		if word != name.Name && (strict || looksLikeName) {
			t.Errorf("%s: the comment of %s begins with %q, expected the name", file, name.Name, word)
		}
	}
	for file, parsed := range parseProduction(t) {
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				check(file, d.Doc, d.Name, true)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						doc := spec.Doc
						if doc == nil && len(d.Specs) == 1 {
							doc = d.Doc
						}
						check(file, doc, spec.Name, true)
					case *ast.ValueSpec:
						doc := spec.Doc
						if doc == nil && !d.Lparen.IsValid() {
							doc = d.Doc
						}
						check(file, doc, spec.Names[0], false)
					}
				}
			}
		}
	}
}

// parseProduction parses the Go files of this repository, except tests and generated files.
func parseProduction(t *testing.T) map[string]*ast.File {
	files := map[string]*ast.File{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "testdata") {
			return errOrSkip(err)
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go") {
			return nil
		}
		source, err := os.ReadFile(path) // recorded by the cache of test results
		if err != nil {
			return err
		}
		files[path], err = parser.ParseFile(token.NewFileSet(), path, source, parser.ParseComments)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
