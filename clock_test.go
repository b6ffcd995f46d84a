package trainmaster

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// readsClock lists, for the rooms whose decisions must not hang on a wall clock (F15), the files that may ask what time it is, and
// what for. What such a file gets is a monotonic reading: it is compared with others of the same process, and neither stored nor sent.
// A file that is not listed reads no clock; the cores have no such file at all.
var readsClock = map[string]string{
	"master/component/component.go":  "the clock that a master is given; tests and the simulator give it another one",
	"master/election/heartbeats.go":  "how long ago etcd answered, and the deadline of a write to a socket",
	"master/registration.go":         "not more than one line of progress in two seconds",
	"master/report.go":               "how long a scan took, for the log",
	"master/report_recent.go":        "how long files that were read are not read again: monotonic, and nothing is stored",
	"master/pscontrol/attendance.go": "whether a look at the leader ended at once: then the next one waits",
	"ledger/hang.go":                 "how long an access to the directory takes, for the log and the status",
	"etcdstore/store.go":             "how long etcd took for its first answer, for the message",
	"etcdstore/boottime_other.go":    "where there is no CLOCK_BOOTTIME: time since the start of the process",
}

// clocks are the functions of package time that read a clock. Timers and tickers wait, and say nothing of the hour.
var clocks = map[string]bool{"Now": true, "Since": true, "Until": true}

// waits are those that a pure room has no use for either.
var waits = map[string]bool{"Sleep": true, "After": true, "AfterFunc": true, "Tick": true, "NewTimer": true, "NewTicker": true}

// F15: nothing decides by wall clock. Where a clock is read at all is listed, with the reason.
func TestNothingDecidesByWallClock(t *testing.T) {
	rooms := []string{"taskqueue", "master/election/detector", "trainer/session", "etcdstore/fence", "rendezvous", "evaluation", "pserver/optimizer", "master", "master/component", "master/committer", "master/pscontrol", "master/election", "etcdstore", "ledger"}
	seen := map[string]bool{}
	for _, dir := range rooms {
		core := dir != "master" && dir != "master/component" && dir != "master/committer" && dir != "master/pscontrol" && dir != "master/election" && dir != "etcdstore" && dir != "ledger"
		files, err := filepath.Glob(filepath.Join(filepath.FromSlash(dir), "*.go"))
		if err != nil {
			t.Fatal(err)
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
					t.Errorf("%s calls time.%s: let the clock be given to it, or say in readsClock why it may", name, called)
				case clocks[called]:
					seen[name] = true
				}
			}
		}
	}
	for name := range readsClock {
		if !seen[name] {
			t.Errorf("%s reads no clock (any more): take its row out of readsClock", name)
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
