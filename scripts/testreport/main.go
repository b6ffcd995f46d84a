// Command testreport runs `go test -json` with its arguments. It prints a line for each package, the output of failed tests,
// the skipped tests with the reasons, and a closing line
//
//	N passed, N failed, N skipped
//
// Subtests count as tests. A package that fails without a failing test counts as one failure: it does not build, it
// crashed, or it exceeded its time. The exit code is 1 if a test failed. With REQUIRE=all in the environment, it is also 1 if
// a test was skipped, except a test that needs a GPU.
//
// Temporary directories of the tests are in /dev/shm if it is large enough, unless TMPDIR is set.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
)

func main() {
	if err := setEnvironment("/dev/shm"); err != nil {
		fmt.Fprintf(os.Stderr, "testreport: %v\n", err)
		os.Exit(1)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = stderr
	events, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintf(stderr, "testreport: go test: %v\n", err)
		return 1
	}
	report := newReport(stdout)
	readErr := report.read(events)
	testErr := cmd.Wait()
	report.close()
	switch {
	case readErr != nil:
		fmt.Fprintf(stderr, "testreport: read the output of go test: %v\n", readErr)
	case testErr != nil && report.failed == 0:
		fmt.Fprintf(stderr, "testreport: go test: %v\n", testErr)
	case report.failed > 0:
	case os.Getenv("REQUIRE") == "all" && report.missing() > 0:
		fmt.Fprintf(stderr, "testreport: REQUIRE=all: %d tests were skipped for want of something else than a GPU\n", report.missing())
	default:
		return 0
	}
	return 1
}
