package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"trainmaster/cmd/internal/cli"
	"trainmaster/local/drill"
	"trainmaster/master"
)

// The help of each command fits a window of 100 columns.
func TestHelpFitsScreen(t *testing.T) {
	n := 0
	for cmd := range cli.Commands(rootCommand()) {
		n++
		var b bytes.Buffer
		cmd.SetOut(&b)
		if err := cmd.Help(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if columns := utf8.RuneCountInString(strings.TrimRight(line, "\n")); columns > cli.HelpWidth {
				t.Errorf("%s: %d columns, want at most %d: %s", cmd.CommandPath(), columns, cli.HelpWidth, line)
			}
		}
	}
	if n < 30 {
		t.Errorf("found %d commands, expected all", n)
	}
}

// The Python package has the program under another name. Users copy the commands of its help and errors.
func TestProgramOfThePackageNamesItself(t *testing.T) {
	say := func(args ...string) string {
		root := rootCommand()
		cli.Rename(root, "/venv/bin/trainmaster")
		var b bytes.Buffer
		execute(t.Context(), root, args, &b, &b)
		return b.String()
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--help"}, "\n  trainmaster --data-dir"},
		{[]string{"run", "--help"}, "\n  trainmaster run --model mlp"},
		{[]string{"run", "--help"}, "'trainmaster recordio convert'"},
		{[]string{"runn"}, "See 'trainmaster --help'"},
		{[]string{"status", "--addr", "127.0.0.1:1"}, "start a master with: trainmaster --listen 127.0.0.1:1"},
		{[]string{"status", "--addr", "127.0.0.1:1"}, "show it with trainmaster queues --literal or trainmaster verify"},
	} {
		if found := say(c.args...); !strings.Contains(found, c.want) || strings.Contains(found, " master run") {
			t.Errorf("%q: expected %q, without master run, found:\n%s", c.args, c.want, found)
		}
	}
}

// The names of trainers are completed, for drain by the job and for a drill by the directory of the run.
func TestCompletionKnowsTrainers(t *testing.T) {
	l := lead(t, master.Config{})
	l.join("worker-1")
	l.join("worker-2")
	complete := func(args ...string) []string {
		r := runArgs(t, append([]string{"__complete"}, args...)...)
		r.wants(t, cli.ExitOK)
		return strings.Fields(r.stdout)
	}
	if found := complete("drain", "--addr", l.addr, ""); !slices.Equal(found[:len(found)-1], []string{"worker-1", "worker-2"}) {
		t.Errorf("drain: found %q", found)
	}
	if found := complete("drain", "--addr", l.addr, "worker-1", ""); len(found) != 1 {
		t.Errorf("a second trainer: found %q", found)
	}
	if found := complete("drain", "--addr", closedPort(t), ""); len(found) != 1 {
		t.Errorf("without a master: found %q", found)
	}
	dir := t.TempDir()
	scene, err := drill.NewRegister(dir, drill.Scene{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"master", "trainer-0", "trainer-1"} {
		if err := scene.Started(name, os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if found := complete("drill", "kill-trainer", "--dir", dir, "--trainer", ""); !slices.Equal(found[:len(found)-1], []string{"trainer-0", "trainer-1"}) {
		t.Errorf("a drill: found %q", found)
	}
}
