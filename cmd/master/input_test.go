package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trainmaster/cmd/internal/cli"
	"trainmaster/internal/safetensors"
)

// A FIFO that nothing writes, and a silent standard input, end with the context, as at Ctrl-C, and leave no temporary file.
func TestBlockedInputEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Mkdir(filepath.Join(dir, "out"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"write from a FIFO":           {"write", filepath.Join(dir, "out", "a"), fifo},
		"write from a FIFO, per file": {"write", "--per-file", filepath.Join(dir, "out", "b"), fifo},
		"write from standard input":   {"write", filepath.Join(dir, "out", "c")},
		"convert a FIFO":              {"convert", fifo, filepath.Join(dir, "out", "d")},
	} {
		t.Run(name, func(t *testing.T) {
			silent, unused := io.Pipe()
			defer unused.Close()
			cmd := recordioCommand()
			cli.FinishTree(cmd)
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetIn(silent)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan int, 1)
			var errs bytes.Buffer
			go func() { ended <- execute(ctx, cmd, args, io.Discard, &errs) }()
			select {
			case code := <-ended:
				t.Fatalf("ended with %d before anything was written: %s", code, errs.String())
			case <-time.After(50 * time.Millisecond): // the read usually blocks within this time; otherwise the context ends it earlier
			}
			cancel()
			select {
			case code := <-ended:
				if code != cli.ExitInterrupted || !strings.Contains(errs.String(), "interrupted") {
					t.Errorf("exit code %d: %s", code, errs.String())
				}
			case <-time.After(time.Minute):
				t.Error("the command still reads")
			}
			release, err := os.OpenFile(fifo, os.O_RDWR, 0) // ends the open that is left behind
			if err == nil {
				err = release.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	left, err := filepath.Glob(filepath.Join(dir, "out", ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Files that are read at any offset are regular ones: nothing waits for a writer of a FIFO.
func TestModelAndSnapshotAreRegularFiles(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"model", "inspect", fifo},
		{"model", "diff", fifo, fifo},
		{"snapshot", "inspect", fifo},
	} {
		if r := runArgs(t, args...); r.code == cli.ExitOK || !strings.Contains(r.stderr, "expected") {
			t.Errorf("%q: exit code %d: %s", args, r.code, r.stderr)
		}
	}
	for _, path := range []string{fifo, t.TempDir()} {
		if _, _, err := safetensors.ReadFile(path); err == nil || !strings.Contains(err.Error(), "expected a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
