// Package trainmaster has no code of its own: here stand the tests that look at the project as a whole.
package trainmaster

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "trainmaster"

// A room is a directory, with the directories below it that have no row.
type room struct {
	dir string
	// may lists the packages that it may import, besides itself.
	may []string
	// pure: it imports no package of ioPackages, and no library of other projects except libraries.
	pure bool
	// libraries of other projects that a pure room may import. They only compute.
	libraries []string
}

// house has the allowed imports: commands -> interfaces and adapters -> master -> cores. Adapters never import each other.
var house = []room{
	// cores
	{dir: "recordio"},
	{dir: "dataset", may: []string{"recordio", "internal/objectstore"}},
	{dir: "taskqueue", may: []string{"recordio"}, pure: true},
	{dir: "ledger", may: []string{"taskqueue", "internal/failpoint"}},
	{dir: "master/snapshot", may: []string{"taskqueue"}},
	{dir: "internal/safetensors", may: []string{"internal/filekind"}},
	{dir: "internal/failpoint", pure: true},
	{dir: "internal/jsonstate", pure: true},
	// what both ends of a connection must agree on
	{dir: "proto"},
	{dir: "internal/largemsg"},
	{dir: "internal/grpcserver", may: []string{"internal/largemsg"}},
	{dir: "dataset/onwire", may: []string{"recordio", "dataset", "internal/grpcserver"}},
	{dir: "taskqueue/onwire", may: []string{"taskqueue", "proto"}},
	{dir: "master/netrpc/wire", may: []string{"recordio", "dataset", "taskqueue"}},
	{dir: "pserver/floats", pure: true, libraries: []string{"gonum.org/v1/gonum/blas/blas32", "golang.org/x/sys/cpu"}},
	{dir: "pserver/wire", may: []string{"pserver/floats", "pserver/placement", "pserver/table"}},
	{dir: "pserver/sharedmem", may: []string{"pserver/wire"}},
	{dir: "pserver/partition", pure: true},
	{dir: "pserver/placement", may: []string{"pserver/partition", "pserver/table"}},
	{dir: "pserver/optimizer", pure: true, libraries: []string{"gonum.org/v1/gonum/blas/blas32", "golang.org/x/sys/cpu"}},
	{dir: "pserver/table", may: []string{"pserver/floats", "pserver/optimizer", "pserver/partition"}, pure: true},
	{dir: "pserver/staleness", pure: true},
	{dir: "pserver/model", may: []string{"pserver/optimizer", "pserver/placement", "pserver/staleness", "pserver/table"}, pure: true},
	{dir: "pserver/shard", may: []string{"pserver/floats", "pserver/model", "pserver/optimizer", "pserver/partition", "pserver/placement", "pserver/staleness", "pserver/table"}, pure: true},
	{dir: "pserver/dataport", may: []string{"pserver/floats", "pserver/shard", "pserver/sharedmem", "pserver/table", "pserver/wire"}},
	{dir: "pserver/persist", may: []string{"pserver/checkpoint", "pserver/floats", "pserver/model", "pserver/partition", "pserver/placement", "pserver/shard", "pserver/table"}},
	{dir: "pserver/migrate", may: []string{"internal/grpcdial", "pserver/floats", "pserver/partition", "pserver/shard", "pserver/table", "proto"}},
	{dir: "internal/cgroup"},
	{dir: "pserver/control", may: []string{"internal/cgroup", "internal/grpcdial", "pserver/checkpoint", "pserver/migrate", "pserver/model", "pserver/onwire", "pserver/persist", "pserver/placement", "pserver/shard", "pserver/table", "proto"}},
	{dir: "trainer/params/plan", may: []string{"pserver/floats", "pserver/optimizer", "pserver/placement", "pserver/table", "pserver/wire"}, pure: true, libraries: []string{"gonum.org/v1/gonum/blas/blas32"}},
	{dir: "pserver/onwire", may: []string{"pserver/model", "pserver/optimizer", "pserver/placement", "pserver/staleness", "pserver/table", "proto"}},
	// decisions, and other packages that the simulator shares with the program
	{dir: "master/store", may: []string{"taskqueue", "ledger"}},
	{dir: "master/component", may: []string{"taskqueue", "ledger"}},
	{dir: "master/committer", may: []string{"taskqueue", "ledger", "master/store", "master/component"}},
	{dir: "master/election/detector", may: []string{"master/store"}, pure: true},
	{dir: "master/election", may: []string{"taskqueue", "master/store", "master/election/detector"}},
	{dir: "trainer/session", may: []string{"taskqueue", "master/netrpc/wire"}},
	{dir: "master/evaluation/metric", pure: true},
	{dir: "master/evaluation", may: []string{"internal/jsonstate", "taskqueue", "master/evaluation/metric"}, pure: true},
	{dir: "master/strategy", may: []string{"taskqueue", "master/evaluation", "master/evaluation/metric"}, pure: true, libraries: []string{"go.yaml.in/yaml/v3"}},
	{dir: "master/podmanager", may: []string{"internal/jsonstate", "taskqueue"}, pure: true},
	{dir: "master/rendezvous", may: []string{"internal/jsonstate", "taskqueue"}, pure: true},
	{dir: "etcdstore/fence", may: []string{"taskqueue"}},
	{dir: "master/pscontrol", may: []string{"master/evaluation", "taskqueue", "master/store", "master/component", "master/committer", "master/snapshot", "master/election/detector"}},
	{dir: "master/trainercontrol", may: []string{"taskqueue", "master/component"}},
	// the application
	{dir: "master/rounds", may: []string{"taskqueue", "master/store", "master/component", "master/committer", "master/evaluation", "master/evaluation/metric"}},
	{dir: "master/progress", may: []string{"taskqueue", "master/component", "master/evaluation"}},
	{dir: "master/pods", may: []string{"taskqueue", "master/store", "master/component", "master/committer", "master/podmanager"}},
	{dir: "master/ring", may: []string{"taskqueue", "master/store", "master/component", "master/committer", "master/rendezvous"}},
	{dir: "master", may: []string{"master/ring", "master/pods", "master/evaluation/metric", "master/trainercontrol", "recordio", "dataset", "taskqueue", "ledger", "master/store", "master/component", "master/committer", "master/pscontrol", "master/election"}},
	{dir: "ledger/verify", may: []string{"taskqueue", "ledger"}},
	{dir: "recordio/tool", may: []string{"recordio", "dataset"}},
	{dir: "internal/usage", pure: true},
	{dir: "internal/filekind"},
	{dir: "internal/procgroup"},
	{dir: "internal/grpcdial"},
	{dir: "internal/objectstore", may: []string{"internal/freeport", "scripts"}},
	// interfaces and adapters
	{dir: "etcdstore", may: []string{"taskqueue", "ledger", "etcdstore/fence", "master/store"}},
	{dir: "master/netrpc", may: []string{"internal/largemsg", "master", "recordio", "dataset", "taskqueue", "master/netrpc/wire"}},
	{dir: "dataset/proxy", may: []string{"internal/grpcdial", "recordio", "dataset", "dataset/onwire", "internal/grpcserver", "proto"}},
	{dir: "master/podmanager/processes", may: []string{"internal/procgroup", "master/podmanager", "taskqueue"}},
	{dir: "master/podmanager/kubernetes", may: []string{"master/podmanager"}},
	{dir: "master/trainerclient", may: []string{"internal/grpcdial", "master/trainercontrol", "taskqueue", "taskqueue/onwire", "proto"}},
	{dir: "master/grpcapi", may: []string{"master", "master/pods", "master/ring", "master/rendezvous", "master/trainercontrol", "master/evaluation", "master/evaluation/metric", "taskqueue/onwire", "master/pscontrol", "dataset/onwire", "internal/grpcdial", "internal/grpcserver", "internal/largemsg", "taskqueue", "proto"}},
	{dir: "master/httpapi", may: []string{"master", "master/rendezvous", "ledger"}},
	{dir: "pserver/checkpoint", may: []string{"internal/safetensors", "internal/failpoint", "pserver/floats", "pserver/model", "pserver/partition", "pserver/placement", "pserver/optimizer", "pserver/table", "pserver/staleness"}},
	{dir: "pserver", may: []string{"internal/failpoint", "internal/grpcserver", "internal/portsplit", "proto", "pserver/checkpoint", "pserver/checkpoint/storage", "pserver/control", "pserver/dataport", "pserver/persist", "pserver/shard", "pserver/wire"}},
	{dir: "trainer/params/stream", may: []string{"pserver/floats", "pserver/sharedmem", "pserver/wire"}},
	{dir: "trainer/params/link", may: []string{"internal/grpcdial", "trainer/params/stream", "proto", "pserver/placement", "pserver/wire"}},
	{dir: "trainer/params/shards", may: []string{
		"trainer/params/plan", "trainer/params/stream", "trainer/params/link", "proto", "pserver/floats", "pserver/model", "pserver/onwire", "pserver/optimizer",
		"pserver/placement", "pserver/staleness", "pserver/table", "pserver/wire",
	}},
	{dir: "trainer", may: []string{"internal/filekind", "master/evaluation/metric", "internal/grpcdial", "internal/grpcserver", "taskqueue/onwire", "trainer/params/shards", "trainer/params/plan", "trainer/params/stream", "trainer/params/link", "recordio", "dataset", "taskqueue", "internal/safetensors", "proto", "master/netrpc/wire", "pserver/wire", "pserver/sharedmem", "pserver/placement", "pserver/optimizer", "pserver/table", "pserver/staleness", "trainer/session"}},
	{dir: "trainer/agent", may: []string{"master/evaluation/metric", "trainer", "trainer/agent/arena", "trainer/rendezvous", "proto", "dataset", "recordio", "taskqueue"}},
	{dir: "trainer/agent/arena", may: []string{"taskqueue", "trainer"}},
	{dir: "trainer/rendezvous", may: []string{"internal/grpcdial", "proto", "trainer"}},
	{dir: "trainer/reference", may: []string{"trainer", "trainer/params/plan", "trainer/ring", "trainer/allreduce", "trainer/rendezvous", "internal/filekind", "internal/safetensors", "master/evaluation/metric", "recordio", "dataset", "taskqueue", "proto", "pserver/floats", "pserver/optimizer", "pserver/table"}},
	{dir: "trainer/ring", may: []string{"pserver/floats", "pserver/optimizer"}},
	{dir: "trainer/allreduce", may: []string{"pserver/floats", "taskqueue", "trainer/ring"}},
	{dir: "trainer/parts", may: []string{"pserver/checkpoint", "pserver/checkpoint/storage"}},
	{dir: "pserver/checkpoint/storage", may: []string{"internal/objectstore", "pserver/checkpoint"}},
	{dir: "master/psclient", may: []string{"internal/grpcdial", "master/pscontrol", "proto", "pserver/checkpoint", "pserver/placement", "pserver/onwire", "taskqueue"}},
	{dir: "pserver/checkpoint/modelfile", may: []string{"internal/filekind", "internal/safetensors", "internal/usage", "pserver/checkpoint", "pserver/checkpoint/storage", "pserver/floats"}},
	{dir: "master/restore", may: []string{"master/evaluation", "dataset", "etcdstore", "internal/usage", "ledger", "master", "master/committer", "master/pscontrol", "master/rounds", "master/snapshot", "pserver/checkpoint", "pserver/checkpoint/modelfile", "pserver/checkpoint/storage", "taskqueue"}},
	{dir: "internal/portsplit"},
	{dir: "internal/tcpproxy"},
	{dir: "internal/httpproxy"},
	{dir: "internal/freeport"},
	{dir: "operator/api"},
	{dir: "operator", may: []string{"operator/api", "master/podmanager", "master/podmanager/kubernetes", "master/progress"}},
	// commands and tools
	{dir: "cmd", may: anything},
	{dir: "cmd/internal/cli", may: []string{"internal/usage", "internal/filekind", "etcdstore", "local", "pserver", "pserver/checkpoint/storage"}},
	{dir: "cmd/internal/view", may: []string{"cmd/internal/cli", "ledger/verify", "local", "master/restore", "master/rounds", "master/snapshot", "pserver/checkpoint/modelfile", "proto", "taskqueue"}},
	{dir: "cmd/internal/admin", may: []string{"internal/grpcdial", "cmd/internal/cli", "cmd/internal/view", "internal/usage", "internal/filekind", "etcdstore", "ledger", "ledger/verify", "local", "local/drill", "master", "master/committer", "master/evaluation", "master/rounds", "master/strategy", "master/grpcapi", "master/psclient", "proto", "taskqueue", "trainer"}},
	{dir: "local/drill", may: []string{"etcdstore", "master/store", "taskqueue", "internal/tcpproxy"}},
	{dir: "local", may: []string{"internal/tcpproxy", "recordio", "dataset", "taskqueue", "etcdstore", "pserver/optimizer", "trainer", "trainer/reference", "testdata", "local/drill", "master/podmanager", "master/podmanager/processes"}},
	{dir: "local/worker", may: []string{"internal/procgroup", "master/rendezvous", "proto", "trainer/rendezvous"}},
	{dir: "testdata"},
	{dir: "examples", may: []string{"trainer", "taskqueue", "dataset"}},
	{dir: "e2e", may: anything},
	{dir: "local/bench", may: anything},
	{dir: "master/mastertest", may: anything},
	{dir: "pserver/pservertest", may: []string{"pserver"}},
	{dir: "etcdstore/etcdtest", may: []string{"etcdstore", "internal/tcpproxy", "internal/freeport"}},
	{dir: "scripts"},
}

// anything is the list of a room that may import all others.
var anything = []string{"*"}

// ioPackages are the packages that a pure room must not import, with the packages below them.
var ioPackages = []string{"os", "net", "syscall", "log", "path/filepath", "runtime/debug"}

func roomOf(importPath string) (room, bool) {
	dir := strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
	var best room
	for _, r := range house {
		if (dir == r.dir || strings.HasPrefix(dir, r.dir+"/")) && len(r.dir) > len(best.dir) {
			best = r
		}
	}
	return best, best.dir != ""
}

func (r room) mayImport(other room) bool {
	return r.dir == other.dir || slices.Contains(r.may, other.dir) || slices.Equal(r.may, anything)
}

// pkg is a package in the output of `go list`.
type pkg struct {
	ImportPath string
	Dir        string
	Standard   bool
	Imports    []string
	GoFiles    []string
	Module     *struct{ Path string }
}

func (p pkg) ours() bool { return p.Module != nil && p.Module.Path == module }

// dependencies lists all packages that the project's code, not its tests, is made of.
func dependencies(t *testing.T) map[string]pkg {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Dir,Standard,Imports,GoFiles,Module", "./...").Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	// go caches the result of a test by the files that the test itself looked at; what `go list` reads does not count.
	watch := func(dir string) {
		if _, err := os.ReadDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	watch(".")
	packages := map[string]pkg{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if err == io.EOF {
			return packages
		}
		if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
		if p.ours() {
			watch(p.Dir)
		}
	}
}

func TestImportsPointOneWay(t *testing.T) {
	packages := dependencies(t)
	if !packages[module+"/cmd/master"].ours() {
		t.Fatalf("go list found no %s/cmd/master among %d packages", module, len(packages))
	}
	for _, p := range packages {
		if !p.ours() || len(p.GoFiles) == 0 {
			continue
		}
		from, ok := roomOf(p.ImportPath)
		if !ok {
			t.Errorf("%s stands in no room: add a row to the table in imports_test.go", p.ImportPath)
			continue
		}
		for _, path := range p.Imports {
			imported := packages[path]
			switch {
			case imported.ours():
				to, ok := roomOf(path)
				if ok && !from.mayImport(to) {
					t.Errorf("%s imports %s: %s may import %v", p.ImportPath, path, from.dir, from.may)
				}
			case from.pure && !imported.Standard && !slices.Contains(from.libraries, path):
				t.Errorf("%s imports %s: %s is pure and imports the standard library and %v only", p.ImportPath, path, from.dir, from.libraries)
			case path == "net/netip": // addresses as values, without I/O
			case from.pure && slices.ContainsFunc(ioPackages, func(io string) bool { return path == io || strings.HasPrefix(path, io+"/") }):
				t.Errorf("%s imports %s: %s is pure; the shell around it touches the machine", p.ImportPath, path, from.dir)
			}
		}
	}
}

// A table with a cycle would let imports point both ways.
func TestHouseHasNoCycle(t *testing.T) {
	may := map[string][]string{}
	for _, r := range house {
		may[r.dir] = r.may
	}
	var visit func(path []string)
	visit = func(path []string) {
		for _, next := range may[path[len(path)-1]] {
			if _, ok := may[next]; !ok && next != "*" {
				t.Errorf("%s may import %s, which has no row", path[len(path)-1], next)
			}
			if slices.Contains(path, next) {
				t.Fatalf("a cycle: %v", append(path, next))
			}
			visit(append(slices.Clone(path), next))
		}
	}
	for _, r := range house {
		visit([]string{r.dir})
	}
}
