package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"trainmaster/cmd/internal/cli"
	"trainmaster/internal/filekind"
)

// The error of a flag for a directory or file names the kind of file that was found, in each command.
func TestFlagsSayWhatTheyFound(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("x"), 0o600), os.Symlink("nowhere", link)); err != nil {
		t.Fatal(err)
	}
	const aFile = "expected a directory, found a file"
	aLink := fmt.Sprintf("expected a directory, found a link to %q, which does not exist", filepath.Join(dir, "nowhere"))
	for _, c := range []struct {
		args []string
		flag string
		path string
		want string
	}{
		{[]string{"run"}, "dir", file, aFile},
		{[]string{"run"}, "dir", link, aLink},
		{[]string{"run"}, "resume", file, aFile},
		{[]string{"drill", "kill-leader"}, "dir", file, aFile},
		{[]string{"status"}, "dir", file, aFile},
		{[]string{"status"}, "data-dir", link, aLink},
		{nil, "data-dir", file, aFile},
		{nil, "data-dir", link, aLink},
		{nil, "resume", link, aLink},
		{nil, "ledger-dir", file, aFile},
		{[]string{"pserver"}, "checkpoint-dir", file, aFile},
		{[]string{"bench", "queue"}, "dir", file, aFile},
		{[]string{"status"}, "cacert", dir, "expected a PEM file, found a directory"},
		{[]string{"status"}, "cacert", link, "expected a PEM file, found a link to"},
		{[]string{"trainer"}, "save-model", dir, "expected a file, found a directory"},
		{[]string{"trainer"}, "journal", dir, "expected a file, found a directory"},
	} {
		t.Run(fmt.Sprint(c.args, c.flag), func(t *testing.T) {
			runArgs(t, append(c.args, "--"+c.flag, c.path)...).wants(t, cli.ExitUsage, fmt.Sprintf("bad value %q for --%s from the command line: %s", c.path, c.flag, c.want))
		})
	}
	runArgs(t, "model", "inspect", link).wants(t, cli.ExitFailed, "found a link to", "nowhere")
}

// Only a regular file is ever replaced by a new one: a device, a pipe or a link stays, also with --force.
func TestNewFilesReplaceOnlyRegularFiles(t *testing.T) {
	dir := t.TempDir()
	file, pipe, link := filepath.Join(dir, "file"), filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	err := errors.Join(os.WriteFile(file, nil, 0o600), syscall.Mkfifo(pipe, 0o600), os.Symlink(file, link))
	if err != nil {
		t.Fatal(err)
	}
	if err := filekind.CheckNew(file, true); err != nil {
		t.Errorf("a regular file: %v", err)
	}
	for path, kind := range map[string]string{pipe: "a named pipe", link: "a link"} {
		runArgs(t, "model", "export", dir, "--file", path, "--force").wants(t, cli.ExitFailed, "found "+kind, "--force does not replace")
	}
}
