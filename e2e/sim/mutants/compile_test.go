package mutants

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
)

// compiler type-checks a package of a module with one file replaced. Imports are read from export data.
type compiler struct {
	packages map[string]listed // of the module, by directory
	imports  *lockedImporter
}

// listed is a package as go list prints it, without its tests.
type listed struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
	Module                  *struct {
		Main      bool
		GoVersion string
	}
}

// newCompiler lists the packages of the module at root and builds the export data of all packages that they import.
func newCompiler(root string) (*compiler, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles,Module", "./...")
	list.Dir = root
	var stderr bytes.Buffer
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", list, err, stderr.Bytes())
	}
	packages, exports := map[string]listed{}, map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg listed
		err := decoder.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", list, err)
		}
		exports[pkg.ImportPath] = pkg.Export
		if pkg.Module != nil && pkg.Module.Main {
			packages[pkg.Dir] = pkg
		}
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	return &compiler{packages, &lockedImporter{from: importer.ForCompiler(token.NewFileSet(), "gc", open)}}, nil
}

// lockedImporter is an importer for concurrent use.
type lockedImporter struct {
	mu   sync.Mutex
	from types.Importer
}

func (i *lockedImporter) Import(path string) (*types.Package, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.from.Import(path)
}

// check returns the first error of the package of a file, if the file has this source.
func (c *compiler) check(file string, source []byte) error {
	file, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	pkg, ok := c.packages[filepath.Dir(file)]
	if !ok {
		return fmt.Errorf("%s: expected a file in a package of go list", file)
	}
	var (
		files    = token.NewFileSet()
		parsed   []*ast.File
		replaced bool
	)
	for _, name := range pkg.GoFiles {
		path, text := filepath.Join(pkg.Dir, name), any(nil)
		if path == file {
			replaced, text = true, source
		}
		f, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		parsed = append(parsed, f)
	}
	if !replaced {
		return fmt.Errorf("%s: build constraints exclude the file", file)
	}
	config := types.Config{
		Importer:  c.imports,
		GoVersion: "go" + pkg.Module.GoVersion,
		Sizes:     types.SizesFor("gc", runtime.GOARCH),
	}
	_, err = config.Check(pkg.ImportPath, files, parsed, nil) // Check ends at the first error without a handler of errors
	return err
}

// checkCompile returns an error for each bug whose package does not compile.
func checkCompile(c *compiler, markers map[string]marker, bugs []mutant) error {
	faults := make([]error, len(bugs))
	var checks errgroup.Group
	checks.SetLimit(runtime.GOMAXPROCS(0))
	for i, bug := range bugs {
		checks.Go(func() error {
			planted, err := apply(markers, bug)
			if err != nil {
				faults[i] = err
			} else if err := c.check(markers[bug.Marker].file, planted); err != nil {
				faults[i] = fmt.Errorf("bug %q at %s does not compile: %w", bug.Name, bug.Marker, err)
			}
			return nil
		})
	}
	_ = checks.Wait()
	return errors.Join(faults...)
}

// A bug that does not compile is found late otherwise: only make mutants builds it.
func TestBugsCompile(t *testing.T) {
	c, err := newCompiler(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkCompile(c, markers(t), all()); err != nil {
		t.Error(err)
	}
}

func TestBugThatDoesNotCompileIsReported(t *testing.T) {
	const source = "package p\n\nimport \"os\"\n\nfunc p() int {\n\tn := 1\n\t//guard:a\n\tn = os.Getpid()\n\treturn n\n}\n"
	root := writeModule(t, source)
	if err := os.WriteFile(filepath.Join(root, "go.mod"), []byte("module m\n\ngo 1.26\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := newCompiler(root)
	if err != nil {
		t.Fatal(err)
	}
	found, err := findMarkers(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		edit edit
		want string // empty: it compiles
	}{
		"a bug that compiles":  {value("$ + 1"), ""},
		"an unknown name":      {value("$ + missing"), `bug "n" at a does not compile: ` + filepath.Join(root, "pkg", "p.go") + ":8:20: undefined: missing"},
		"an unused import":     {remove(), `p.go:3:8: "os" imported and not used`},
		"an unused variable":   {whole("m := 1\n$"), "p.go:8:2: declared and not used: m"},
		"a value of that type": {value(`"1"`), "p.go:8:6: cannot use"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkCompile(c, found, []mutant{{Name: "n", Marker: "a", Edit: row.edit}})
			if row.want == "" && err != nil {
				t.Errorf("found %v, expected no error", err)
			}
			if row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("found %v, expected an error with %q", err, row.want)
			}
		})
	}
}
