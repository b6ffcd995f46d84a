package local

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wrapped is a process whose program runs behind a shell that does not exec it.
func wrapped(t *testing.T, script string, args ...string) *process {
	t.Helper()
	p := runs(t, args...)
	p.args = append([]string{"-c", script, p.binary}, p.args...)
	p.binary = "/bin/sh"
	return p
}

const (
	behindShell  = `"$0" "$@"; echo done`
	inBackground = `"$0" "$@" & until test -s "$3"; do sleep 0.01; done`
)

// group returns the process group of p once its program has noted that it is up.
func group(t *testing.T, p *process, file string, starts int) int {
	t.Helper()
	await(t, "the program is up", func() bool { return len(noted(file)) == starts })
	id := int(p.pid.Load())
	if !groupRuns(id) {
		t.Fatalf("process group %d does not exist", id)
	}
	return id
}

func TestStopEndsTrainerBehindShell(t *testing.T) {
	stop := func(t *testing.T, p *process, file string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.run(ctx) }()
		id := group(t, p, file, 1)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if groupRuns(id) {
			t.Errorf("process group %d is still there", id)
			_ = signalGroup(id, syscall.SIGKILL)
		}
	}
	t.Run("in order", func(t *testing.T) { // although the shell ends immediately
		file := filepath.Join(t.TempDir(), "notes")
		stop(t, wrapped(t, behindShell, "stays", file, "it", "200"), file)
		if found := noted(file); !slices.Equal(found, []string{"it_up", "it_terminated"}) {
			t.Errorf("noted %q", found)
		}
	})
	t.Run("by force", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "notes")
		p := wrapped(t, behindShell, "stubborn", file)
		p.stopTimeout = 100 * time.Millisecond
		stop(t, p, file)
	})
}

// Two trainers of one name would take each other's session.
func TestKilledShellIsRestartedWithoutFormerTrainer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "notes")
	p := wrapped(t, behindShell, "stubborn", file)
	p.stopTimeout = 0
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.run(ctx) }()
	former := group(t, p, file, 1)
	if err := syscall.Kill(former, syscall.SIGKILL); err != nil { // the shell alone
		t.Fatal(err)
	}
	group(t, p, file, 2)
	if groupRuns(former) {
		t.Error("the former trainer still runs")
		_ = signalGroup(former, syscall.SIGKILL)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestNormalEndKillsBackgroundProcesses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "notes")
	p := wrapped(t, inBackground, "stubborn", file)
	if err := p.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := number(strings.TrimPrefix(noted(file)[0], "up_"))
	if !gone(pid) {
		t.Errorf("process %d outlives the command", pid)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
