package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module writes a module whose tests are the given file, and makes it the current directory.
func module(t *testing.T, testFile string) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"go.mod":           "module example\n\ngo 1.26.0\n",
		"example.go":       "package example\n",
		"example_test.go":  testFile,
		"none/none.go":     "package none\n",
		"good/good.go":     "package good\n",
		"good/g_test.go":   "package good\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) { t.Log(\"quiet\") }\n",
		"empty/e_test.go":  "package empty\n",
		"empty/example.go": "package empty\n",
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

func TestRun(t *testing.T) {
	tests := map[string]struct {
		file    string
		require string // the environment's REQUIRE
		code    int
		closing string
		want    []string
		not     []string
	}{
		"passes and skips": {
			file: `package example
import "testing"
func TestA(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Log("silent") }) }
func TestB(t *testing.T) { t.Skip("needs npm") }`,
			code:    0,
			closing: "3 passed, 0 failed, 1 skipped",
			want:    []string{"ok    example ", "ok    example/good ", "-     example/none ", "skipped:\n  example TestB: needs npm\n"},
			not:     []string{"silent", "quiet", "=== RUN"},
		},
		"a skip where all is required": {
			file: `package example
import "testing"
func TestA(t *testing.T) { t.Skip("needs npm") }`,
			require: "all",
			code:    1,
			closing: "1 passed, 0 failed, 1 skipped",
		},
		"a GPU is never required": {
			file: `package example
import "testing"
func TestA(t *testing.T) { t.Skip("needs a GPU") }`,
			require: "all",
			code:    0,
			closing: "1 passed, 0 failed, 1 skipped",
		},
		"a failing test is shown": {
			file: `package example
import "testing"
func TestA(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Errorf("found %d, want 2", 3) }) }
func TestB(t *testing.T) { t.Log("silent") }`,
			code:    1,
			closing: "2 passed, 2 failed, 0 skipped",
			want:    []string{"FAIL  example ", "--- FAIL: TestA/sub", "example_test.go:3: found 3, want 2", "ok    example/good "},
			not:     []string{"silent"},
		},
		"a package that does not build": {
			file:    "package example\nimport \"testing\"\nfunc TestA(t *testing.T) { undefined() }",
			code:    1,
			closing: "1 passed, 1 failed, 0 skipped",
			want:    []string{"FAIL  example ", "undefined: undefined"},
		},
		"a crash outside a test": {
			file: `package example
import ("os"; "testing"; "fmt")
func TestMain(m *testing.M) { m.Run(); fmt.Println("found a leaked goroutine"); os.Exit(1) }
func TestA(t *testing.T) {}`,
			code:    1,
			closing: "2 passed, 1 failed, 0 skipped",
			want:    []string{"FAIL  example ", "found a leaked goroutine"},
		},
		"a panic": {
			file: `package example
import "testing"
func TestA(t *testing.T) { panic("out of range") }`,
			code:    1,
			closing: "1 passed, 1 failed, 0 skipped",
			want:    []string{"FAIL  example ", "panic: out of range"},
		},
		"out of time": {
			file: `package example
import "testing"
func TestA(t *testing.T) { select {} }`,
			code:    1,
			closing: "1 passed, 1 failed, 0 skipped",
			want:    []string{"FAIL  example ", "test timed out after"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			module(t, tt.file)
			t.Setenv("REQUIRE", tt.require)
			var out, errs strings.Builder
			code := run([]string{"-timeout", "5s", "./..."}, &out, &errs)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if closing := lines[len(lines)-1]; closing != tt.closing {
				t.Errorf("closing line %q, want %q", closing, tt.closing)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the output lacks %q", want)
				}
			}
			for _, not := range tt.not {
				if strings.Contains(out.String(), not) {
					t.Errorf("the output has %q", not)
				}
			}
			if t.Failed() {
				t.Logf("output:\n%s\nerrors:\n%s", out.String(), errs.String())
			}
		})
	}
}

// Several go tests have one report. It fails if a go test cannot run.
func TestSeveral(t *testing.T) {
	module(t, "package example\nimport \"testing\"\nfunc TestA(t *testing.T) { t.Skip(\"needs npm\") }")
	t.Setenv("REQUIRE", "")
	for _, tt := range []struct {
		args    string
		code    int
		closing string
		errs    string
	}{
		{args: ". and -run TestGood ./good", closing: "1 passed, 0 failed, 1 skipped"},
		{args: ". and -count=none ./good", code: 1, closing: "0 passed, 0 failed, 1 skipped", errs: "testreport: go test: exit status"},
	} {
		var out, errs strings.Builder
		if code := run(strings.Fields(tt.args), &out, &errs); code != tt.code || !strings.HasSuffix(out.String(), tt.closing+"\n") || !strings.Contains(errs.String(), tt.errs) {
			t.Errorf("%s: exit code %d, expected %d, and %q and %q, found:\n%s%s", tt.args, code, tt.code, tt.closing, tt.errs, out.String(), errs.String())
		}
	}
}

// Temporary directories are in memory if they fit. Variables of the user stay.
func TestEnvironment(t *testing.T) {
	const memory = "/dev/shm"
	for _, tt := range []struct {
		what         string
		memory       string
		tmp, race    string
		wantTmp      string
		wantBuilding string
		wantRace     string
	}{
		{what: "in memory", memory: memory, wantTmp: memory, wantBuilding: "/tmp", wantRace: "atexit_sleep_ms=0"},
		{what: "the user's", memory: memory, tmp: "/var/tmp", race: "log_path=x", wantTmp: "/var/tmp", wantRace: "log_path=x"},
		{what: "no such memory", memory: "/nowhere", wantRace: "atexit_sleep_ms=0"},
		{what: "a disk", memory: "/proc", wantRace: "atexit_sleep_ms=0"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			if tt.wantTmp == memory && !isRoomy(memory) {
				t.Skip("a large /dev/shm is missing")
			}
			t.Setenv("TMPDIR", tt.tmp)
			t.Setenv("GOTMPDIR", "")
			own := filepath.Join(t.TempDir(), "env")
			if err := os.WriteFile(own, []byte("GOPRIVATE=example.org"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("GOENV", own)
			t.Setenv("GORACE", tt.race)
			end, err := setEnvironment(tt.memory)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string]string{"TMPDIR": tt.wantTmp, "GOTMPDIR": "", "GORACE": tt.wantRace} {
				if got := os.Getenv(name); got != want {
					t.Errorf("%s is %q, expected %q", name, got, want)
				}
			}
			out, err := exec.Command("go", "env", "GOTMPDIR", "GOPRIVATE").Output()
			if err != nil || string(out) != tt.wantBuilding+"\nexample.org\n" {
				t.Errorf("go builds in %q, %v; expected %s, and the other settings of the user", out, err, tt.wantBuilding)
			}
			file := os.Getenv("GOENV")
			end()
			if _, err := os.Stat(file); os.IsNotExist(err) != (file != own) {
				t.Errorf("%s: found %v after the tests", file, err)
			}
		})
	}
}

func TestSlowTestsAreListed(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	for _, e := range []event{
		{Action: "pass", Package: "p", Test: "TestA/sub", Elapsed: 90},
		{Action: "pass", Package: "p", Test: "TestA", Elapsed: 90},
		{Action: "pass", Package: "p", Test: "TestB", Elapsed: 59},
		{Action: "pass", Package: "p", Elapsed: 150},
		{Action: "pass", Package: "q", Elapsed: 1},
	} {
		r.add(0, e)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	if want := []string{"ok p 150.0 s", "90.0 s TestA", "ok q 1.0 s"}; !slices.Equal(lines, want) {
		t.Errorf("expected %q, found %q", want, lines)
	}
}
