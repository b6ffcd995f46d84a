// Command testreport runs `go test -json` with the arguments it is given and prints what a person wants to read: a line
// for each package, the output of tests that failed, the list of tests that were skipped and why, and a closing line
//
//	N passed, N failed, N skipped
//
// Tests and their subtests count alike; a package that fails without a failing test (it does not build, it crashed, it
// ran out of time) counts as one failure. The exit code is 1 when anything failed, and with REQUIRE=all in the
// environment also when anything but a test that needs a GPU was skipped.
//
// The tests' temporary folders are in /dev/shm where that is large enough, unless TMPDIR names others.
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
