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

// build is a build of the program under test. The first use builds it.
type build struct {
	once sync.Once
	dir  string
	err  error
	text []byte // output of the compiler
}

// built is the program under test. It has the race detector if the tests have it.
var built build

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
		for _, dir := range []string{built.dir, pythonStubs.dir} {
			if dir != "" {
				_ = os.RemoveAll(dir)
			}
		}
		os.Exit(code)
	}))
}

// program returns the path of the program under test.
func program(t testing.TB) string {
	t.Helper()
	if raceDetector {
		return built.path(t, nil, "-race")
	}
	return built.path(t, []string{"CGO_ENABLED=0"}, "-trimpath") // the flags of make build, whose cached packages are reused
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
