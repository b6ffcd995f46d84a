package trainmaster

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readsClock lists the files that may read a clock, each with the reason (F15). The reading is monotonic: a file compares it with
// other readings of the same process, and does not store or send it. The pure packages have no such file.
var readsClock = map[string]string{
	"master/component/component.go":  "default clock of a master",
	"master/election/heartbeats.go":  "time since the last answer of etcd; deadline of a write to a socket",
	"master/registration.go":         "interval of the lines of progress",
	"master/online.go":               "duration of an append, for the log",
	"master/report.go":               "duration of a scan, for the log",
	"master/report_recent.go":        "age of the last read of a file",
	"master/pscontrol/attendance.go": "pause after a check that ended immediately",
	"ledger/hang.go":                 "duration of an access to the directory, for the log and the status",
	"etcdstore/store.go":             "duration until the first answer of etcd, for the message",
	"etcdstore/boottime_other.go":    "time since the start of the process, without CLOCK_BOOTTIME",
}

// clocks are the functions of package time that read a clock. Timers and tickers only wait.
var clocks = map[string]bool{"Now": true, "Since": true, "Until": true}

// waits are the functions of package time that a pure package must not call either.
var waits = map[string]bool{"Sleep": true, "After": true, "AfterFunc": true, "Tick": true, "NewTimer": true, "NewTicker": true}

// F15: no decision depends on wall-clock time.
func TestNothingDecidesByWallClock(t *testing.T) {
	dirs := []string{"master", "master/component", "master/committer", "master/pscontrol", "master/election", "etcdstore", "ledger"}
	listed := len(dirs)
	for _, r := range house {
		if r.pure && !slices.Contains(dirs, r.dir) {
			dirs = append(dirs, r.dir)
		}
	}
	seen := map[string]bool{}
	for i, dir := range dirs {
		core := i >= listed
		files, err := filepath.Glob(filepath.Join(filepath.FromSlash(dir), "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: expected files, found %d: %v", dir, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			name := path.Join(dir, filepath.Base(file))
			for _, called := range timeCalls(t, file) {
				switch {
				case core && (clocks[called] || waits[called]):
					t.Errorf("%s calls time.%s: a core receives the time as an argument", name, called)
				case clocks[called] && readsClock[name] == "":
					t.Errorf("%s calls time.%s: pass a clock to it, or add the file to readsClock with the reason", name, called)
				case clocks[called]:
					seen[name] = true
				}
			}
		}
	}
	for name := range readsClock {
		if !seen[name] {
			t.Errorf("%s reads no clock: delete its row in readsClock", name)
		}
	}
}

// timeCalls lists what a file uses of package time.
func timeCalls(t *testing.T, file string) (names []string) {
	t.Helper()
	source, err := os.ReadFile(file) // as the cache of test results sees it
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "time" {
				names = append(names, s.Sel.Name)
			}
		}
		return true
	})
	return names
}
