package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
)

// event is one line of `go test -json` (see `go doc test2json`).
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail; the package, sometimes followed by a variant in brackets
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// pkg is a package in one of the go tests.
type pkg struct {
	command int
	path    string
}

// test names a test of a package; the package's own output goes under the name "".
type test struct {
	pkg
	name string
}

// slow is the time in seconds of a test that is listed below its package.
const slow = 60

type skip struct {
	test
	reason string
}

// report collects events and prints each package as it ends.
type report struct {
	mu                      sync.Mutex
	out                     io.Writer
	passed, failed, skipped int

	skips  []skip
	output map[test][]string // of tests that have not passed, or not yet
	builds map[string][]string
	broken map[pkg][]test // package -> its failed tests, in the order of their ends
	slow   map[pkg][]string
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[test][]string{}, builds: map[string][]string{}, broken: map[pkg][]test{}, slow: map[pkg][]string{}}
}

// read reads the events of a go test, and returns the number of its failures. command is the number of the go test.
func (r *report) read(command int, events io.Reader) (failed int, err error) {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			failed += r.handle(command, line)
		}
		if err == io.EOF {
			return failed, nil
		}
		if err != nil {
			return failed, err
		}
	}
}

func (r *report) handle(command int, line []byte) (failed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.failed
	var e event
	if json.Unmarshal(line, &e) != nil {
		fmt.Fprintf(r.out, "%s", line) // printed by go, not by a test
	} else {
		r.add(command, e)
	}
	return r.failed - before
}

func (r *report) add(command int, e event) {
	t := test{pkg{command, e.Package}, e.Test}
	switch e.Action {
	case "build-output":
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
	case "output":
		if !framing(e.Output) {
			r.output[t] = append(r.output[t], e.Output)
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(t.pkg, e)
		} else {
			r.endTest(e.Action, t)
			if e.Elapsed >= slow && !strings.Contains(e.Test, "/") {
				r.slow[t.pkg] = append(r.slow[t.pkg], fmt.Sprintf("%6.1f s %s", e.Elapsed, e.Test))
			}
		}
	}
}

func (r *report) endTest(action string, t test) {
	switch action {
	case "pass":
		r.passed++
		delete(r.output, t)
	case "fail":
		r.failed++
		r.broken[t.pkg] = append(r.broken[t.pkg], t)
	case "skip":
		r.skipped++
		r.skips = append(r.skips, skip{t, reason(r.output[t])})
		delete(r.output, t)
	}
}

func (r *report) endPackage(p pkg, e event) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(r.out, "ok    %-50s %6.1f s\n", e.Package, e.Elapsed)
		for _, line := range r.slow[p] {
			fmt.Fprintf(r.out, "      %s\n", line)
		}
	case "skip":
		fmt.Fprintf(r.out, "-     %-50s no tests\n", e.Package)
	case "fail":
		fmt.Fprintf(r.out, "FAIL  %-50s %6.1f s\n", e.Package, e.Elapsed)
		broken := r.broken[p]
		if len(broken) == 0 {
			r.failed++
		}
		for _, line := range r.builds[e.FailedBuild] {
			fmt.Fprintf(r.out, "      %s", line)
		}
		for _, t := range broken {
			r.print(t)
		}
		r.print(test{p, ""})
		r.printUnfinished(p)
	}
	for t := range r.output {
		if t.pkg == p {
			delete(r.output, t)
		}
	}
}

// printUnfinished prints the tests that were running when the package crashed or ran out of time.
func (r *report) printUnfinished(p pkg) {
	for t := range r.output {
		if t.pkg == p {
			r.print(t)
		}
	}
}

func (r *report) print(t test) {
	for _, line := range r.output[t] {
		fmt.Fprintf(r.out, "      %s", line)
	}
	delete(r.output, t)
}

// missing counts the skips that another machine should not have: all but those for want of a GPU.
func (r *report) missing() int {
	n := 0
	for _, s := range r.skips {
		if !strings.Contains(s.reason, "GPU") {
			n++
		}
	}
	return n
}

// close prints the skips and the closing line.
func (r *report) close() {
	if len(r.skips) > 0 {
		fmt.Fprintln(r.out, "\nskipped:")
	}
	for _, s := range r.skips {
		fmt.Fprintf(r.out, "  %s %s: %s\n", s.path, s.name, s.reason)
	}
	fmt.Fprintf(r.out, "\n%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}

var frame = regexp.MustCompile(`^(=== (RUN|PAUSE|CONT|NAME|ATTR) |PASS$|FAIL$|FAIL\t|ok  \t|exit status |coverage: |\?   \t)`)

// framing reports whether the test runner, not a test, printed a line.
func framing(line string) bool {
	return frame.MatchString(strings.TrimSuffix(line, "\n"))
}

var position = regexp.MustCompile(`^\S+\.go:\d+: `)

// reason returns the argument of t.Skip from the output of a skipped test.
func reason(output []string) string {
	var words []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "--- SKIP:") {
			words = append(words, position.ReplaceAllString(line, ""))
		}
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}
