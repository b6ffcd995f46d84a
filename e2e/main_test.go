package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"trainmaster/etcdstore/etcdtest"
)

// build is a build of the program under test, made when the first test asks for it.
type build struct {
	once sync.Once
	dir  string
	err  error
	text []byte // what the compiler said
}

// raced looks for data races when this test does; quick never does.
var raced, quick build

// quickly are the tests that have a quick program.
var quickly sync.Map // of nothing by name

func TestMain(m *testing.M) {
	if settings := os.Getenv(counterEnv); settings != "" {
		if err := count(settings); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// These tests wait for leases and for each other's processes more than they compute.
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

// program is the path of the program under test. It looks for data races when this test does, unless the test has a quick one.
func program(t testing.TB) string {
	t.Helper()
	if _, ok := quickly.Load(t.Name()); ok && raceDetector {
		return quick.path(t, []string{"CGO_ENABLED=0"}, "-trimpath") // as make build does, which may have compiled all of it
	}
	if raceDetector {
		return raced.path(t, nil, "-race")
	}
	return raced.path(t, nil)
}

// withQuickProgram gives this test, not those below it, a program that does not look for data races, which costs several times
// the processor time. It is for what a model becomes in the end, where another test does the same for less long, and for
// what a command says and does no more.
func withQuickProgram(t testing.TB) {
	quickly.Store(t.Name(), nil)
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
