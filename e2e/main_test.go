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

// built is the program under test, built when the first test asks for it.
var built struct {
	once sync.Once
	dir  string
	err  error
	text []byte // what the compiler said
}

func TestMain(m *testing.M) {
	if settings := os.Getenv(counterEnv); settings != "" {
		if err := count(settings); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// These tests wait for leases and for each other's processes more than they compute.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	etcdtest.Main(m, goleak.Cleanup(func(code int) {
		if built.dir != "" {
			_ = os.RemoveAll(built.dir)
		}
		os.Exit(code)
	}))
}

// program is the path of the program under test. It looks for data races when this test does.
func program(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "trainmaster-e2e-"); built.err != nil {
			return
		}
		args := []string{"build", "-buildvcs=false", "-o", filepath.Join(built.dir, "master")}
		if raceDetector {
			args = append(args, "-race")
		}
		built.text, built.err = exec.Command("go", append(args, "trainmaster/cmd/master")...).CombinedOutput()
	})
	if built.err != nil {
		t.Fatalf("build the program: %v\n%s", built.err, built.text)
	}
	return filepath.Join(built.dir, "master")
}
