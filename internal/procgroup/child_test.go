package procgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary is also a parent that runs a program which ignores SIGTERM.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "parent" {
		c := Child{Cmd: exec.Command("/bin/sh", "-c", stubborn, "sh", os.Args[2]), Stop: func() syscall.Signal { return syscall.SIGTERM }}
		_, _ = c.Run(context.Background())
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// Programs of the tests. $1 is the file of their notes.
const (
	stays    = `trap 'sleep 0.2; echo terminated >> $1; exit 0' TERM; echo $$ >> $1; while :; do sleep 0.01; done`
	stubborn = `trap '' TERM; echo $$ >> $1; while :; do sleep 0.01; done`
)

// child is a program behind a shell that does not exec it.
func child(program, file string, grace time.Duration) Child {
	return behind(`sh -c "$0" sh "$1"; echo done`, program, file, grace)
}

func behind(shell, program, file string, grace time.Duration) Child {
	return Child{Cmd: exec.Command("/bin/sh", "-c", shell, program, file), Stop: func() syscall.Signal { return syscall.SIGTERM }, Grace: grace}
}

// notes waits for a note, and returns all of them.
func notes(t *testing.T, file string) []string {
	t.Helper()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // interval between checks
		if text, _ := os.ReadFile(file); strings.HasSuffix(string(text), "\n") {
			return strings.Fields(string(text))
		}
		if time.Now().After(limit) {
			t.Fatal("no note of the program within a minute")
		}
	}
}

// gone reports whether a process has ended. Without a waiting parent, it remains as a zombie.
func gone(pid string) bool {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		id, _ := strconv.Atoi(pid)
		return errors.Is(syscall.Kill(id, 0), syscall.ESRCH)
	}
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// F91: signals reach a program behind a shell, although the shell ends immediately.
func TestStopEndsProgramBehindShell(t *testing.T) {
	stop := func(t *testing.T, program string, grace time.Duration) (all []string, took time.Duration) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "notes")
		ctx, cancel := context.WithCancel(t.Context())
		c := child(program, file, grace)
		ended := make(chan error, 1)
		go func() {
			_, err := c.Run(ctx)
			ended <- err
		}()
		pid := notes(t, file)[0]
		cancel()
		began := time.Now()
		if err := <-ended; err == nil {
			t.Error("a stopped shell ended with code 0")
		}
		if took = time.Since(began); !gone(pid) || groupRuns(c.Cmd.Process.Pid) {
			t.Errorf("process %s still runs", pid)
		}
		return notes(t, file), took
	}
	t.Run("in order", func(t *testing.T) {
		if all, _ := stop(t, stays, time.Minute); !slices.Equal(all[1:], []string{"terminated"}) {
			t.Errorf("noted %q", all)
		}
	})
	t.Run("by force", func(t *testing.T) {
		if _, took := stop(t, stubborn, 100*time.Millisecond); took < 100*time.Millisecond {
			t.Errorf("killed after %v, expected 100ms at least", took)
		}
	})
}

// F91: two programs of one name would take each other's session.
func TestEndKillsBackgroundProcesses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "notes")
	c := behind(`sh -c "$0" sh "$1" & until test -s "$1"; do sleep 0.01; done`, stubborn, file, time.Minute)
	if killed, err := c.Run(t.Context()); err != nil || !killed {
		t.Errorf("killed: %v, %v", killed, err)
	}
	if pid := notes(t, file)[0]; !gone(pid) {
		t.Errorf("process %s outlives the command", pid)
		_ = signalGroup(c.Cmd.Process.Pid, syscall.SIGKILL)
	}
}

func TestProgramThatIsNotThere(t *testing.T) {
	c := Child{Cmd: exec.Command(filepath.Join(t.TempDir(), "nothing"))}
	if _, err := c.Run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("found %v", err)
	}
}

// However this process ends, its children do too.
func TestChildrenDieWithTheirParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		if os.Getenv("REQUIRE") == "all" {
			t.Fatal("only Linux ends a child with its parent")
		}
		t.Skip("only Linux ends a child with its parent")
	}
	file := filepath.Join(t.TempDir(), "notes")
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(binary, "parent", file)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	pid := notes(t, file)[0]
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()                                                                    // says that it was killed
	for limit := time.Now().Add(time.Minute); !gone(pid); time.Sleep(time.Millisecond) { // interval between checks
		if time.Now().After(limit) {
			t.Fatal("the child outlives its parent")
		}
	}
}
