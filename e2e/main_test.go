package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"trainmaster/etcdstore/etcdtest"
)

// build is a build of the program under test. The first use builds it.
type build struct {
	once sync.Once
	dir  string
	err  error
	text []byte // output of the compiler
}

// raced has the race detector, quick does not.
var raced, quick build

// racedTests contains the names of the tests that use the raced program.
var racedTests sync.Map

var (
	allRaced  = flag.Bool("e2e.race", false, "use the program with the race detector in all tests")
	someRaced = flag.Bool("e2e.raced", raceDetector, "use the program with the race detector in the tests that select it, also if the tests are without it")
)

func TestMain(m *testing.M) {
	if settings := os.Getenv(counterEnv); settings != "" {
		if err := count(settings); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// These tests mostly wait.
	if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	etcdtest.Main(m, goleak.Cleanup(func(code int) {
		for _, b := range []*build{&raced, &quick} {
			if b.dir != "" {
				_ = os.RemoveAll(b.dir)
			}
		}
		os.Exit(code)
	}))
}

// program returns the path of the program under test: quick, or raced after withRacedProgram.
func program(t testing.TB) string {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	_, selected := racedTests.Load(name)
	if _, ok := racedTests.Load(t.Name()); *allRaced || *someRaced && (ok || selected) {
		return raced.path(t, nil, "-race")
	}
	return quick.path(t, []string{"CGO_ENABLED=0"}, "-trimpath") // the flags of make build, whose cached packages are reused
}

// withRacedProgram selects the program with the race detector for a test and its subtests. It costs several times the processor time, so
// each part of the program has it in some tests. make nightly uses it in all tests.
func withRacedProgram(t testing.TB) {
	racedTests.Store(t.Name(), nil)
}

func (b *build) path(t testing.TB, env []string, flags ...string) string {
	t.Helper()
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "trainmaster-e2e-"); b.err != nil {
			return
		}
		args := append([]string{"build", "-buildvcs=false", "-o", filepath.Join(b.dir, "master")}, flags...)
		cmd := exec.Command("go", append(args, "trainmaster/cmd/master")...)
		cmd.Env = append(os.Environ(), env...)
		b.text, b.err = cmd.CombinedOutput()
	})
	if b.err != nil {
		t.Fatalf("build the program: %v\n%s", b.err, b.text)
	}
	return filepath.Join(b.dir, "master")
}
