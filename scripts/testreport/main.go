// Command testreport runs `go test -json` with its arguments, or several of them at the same time, which the word "and" separates. It
// prints a line for each package and each test of a minute or more, the output of failed tests, the skipped tests with the reasons, and a
// closing line
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
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

func main() {
	end, err := setEnvironment("/dev/shm")
	if err != nil {
		fmt.Fprintf(os.Stderr, "testreport: %v\n", err)
		os.Exit(1)
	}
	code := run(os.Args[1:], os.Stdout, os.Stderr)
	end()
	os.Exit(code)
}

func run(args []string, stdout, stderr io.Writer) int {
	report := newReport(stdout)
	commands := split(args)
	broken := make([]error, len(commands))
	var running sync.WaitGroup
	for i, command := range commands {
		running.Go(func() { broken[i] = report.test(i, command, stderr) })
	}
	running.Wait()
	report.close()
	err := errors.Join(broken...)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "testreport: %v\n", err)
	case report.failed > 0:
	case os.Getenv("REQUIRE") == "all" && report.missing() > 0:
		fmt.Fprintf(stderr, "testreport: REQUIRE=all: %d tests were skipped for want of something else than a GPU\n", report.missing())
	default:
		return 0
	}
	return 1
}

// split returns the arguments of each go test.
func split(args []string) (commands [][]string) {
	for {
		i := slices.Index(args, "and")
		if i < 0 {
			return append(commands, args)
		}
		commands, args = append(commands, args[:i]), args[i+1:]
	}
}

// test runs a go test. It returns an error if the command failed without a failed test, or if its output is incomplete.
func (r *report) test(number int, args []string, stderr io.Writer) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	var said strings.Builder
	cmd.Stderr = &said
	events, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	failed, readErr := r.read(number, events)
	testErr := cmd.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprint(stderr, said.String())
	switch {
	case readErr != nil:
		return fmt.Errorf("read the output of go test: %w", readErr)
	case testErr != nil && failed == 0:
		return fmt.Errorf("go test: %w", testErr)
	}
	return nil
}
