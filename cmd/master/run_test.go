package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
)

// A command line that the trainers would refuse leaves no directory of a run behind.
func TestRunChecksBeforeItBegins(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want []string
	}{
		"a model of other data": {[]string{"--dataset", "flights", "--model", "mlp"}, []string{`model "mlp" does not learn dataset "flights"`, "--model logistic or fm with --dataset flights"}},
		"data of other models":  {[]string{"--model", "fm"}, []string{`model "fm" does not learn dataset "digits"`}},
		"a norm over tables":    {[]string{"--dataset", "flights", "--clip-norm", "1"}, []string{`bad value "1" for --clip-norm from the command line`, "use clip-value"}},
		"no rate":               {[]string{"--dataset", "flights", "--optimizer", "sgd"}, []string{"--learning-rate", "none is known for fm on flights with --optimizer sgd; or take adagrad"}},
		"too many masters":      {[]string{"--masters", "17"}, []string{`bad value "17" for --masters`, "expected 1 to 16"}},
		"too many servers":      {[]string{"--ps", "2000"}, []string{`bad value "2000" for --ps`, "expected 1 to 128"}},
		"too many trainers":     {[]string{"--trainers", "100000"}, []string{`bad value "100000" for --trainers`, "expected 1 to 1000"}},
		"adagrad's momentum":    {[]string{"--dataset", "flights", "--learning-rate", "0.1", "--momentum", "0.9"}, []string{"--momentum", "no value without --optimizer momentum or nesterov"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "runs")
			runArgs(t, append([]string{"run", "--dir", dir}, tt.args...)...).wants(t, cli.ExitUsage, tt.want...)
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the directory of runs: %v, want none", err)
			}
		})
	}
}

// Synchronous settings are valid: the first error is the directory of runs.
func TestRunAcceptsSynchronousSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{{}, {"--backup-workers", "1"}, {"--deterministic"}} {
		args := append([]string{"run", "--update-mode", "sync", "--dir", filepath.Join(file, "runs")}, flags...)
		runArgs(t, args...).wants(t, cli.ExitFailed, "--dir", "expected a directory that can be written")
	}
}

// The error of a setting that a resumed run cannot change has its value, or "the default".
func TestResumeRefusesOtherSettings(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "etcd"), 0o700),
		os.WriteFile(filepath.Join(dir, "run.json"), []byte(`{"settings": {"passes": "0", "trainers": "5"}}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	runArgs(t, "run", "--resume", dir, "--passes", "3").wants(t, cli.ExitUsage, "--passes cannot change on resume: expected the default, which the run in "+dir+` has, found "3": omit it`)
	runArgs(t, "run", "--resume", dir, "--trainers", "3").wants(t, cli.ExitUsage, `--trainers cannot change on resume: expected "5"`, `found "3": omit it`)
	runArgs(t, "run", "--resume", dir, "--", "true").wants(t, cli.ExitUsage, "expected no command, since the run in "+dir+" has built-in trainers")
}

// A run that is already under way is named, and no flag that master run lacks.
func TestRunErrorNamesNextCommand(t *testing.T) {
	dir := t.TempDir()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		ctx  context.Context
		err  error
		code int
		want string
	}{
		"in use":      {t.Context(), fmt.Errorf("start etcd: %w", etcdstore.ErrInUse), cli.ExitFailed, "start etcd: in use by another process: that process continues this run: end it first"},
		"interrupted": {canceled, context.Canceled, cli.ExitInterrupted, "interrupted; nothing was trained yet: begin another run"},
		"full":        {t.Context(), &fs.PathError{Op: "write", Path: dir, Err: syscall.ENOSPC}, cli.ExitStore, "no space left on device: free space on the disk of " + dir},
		"another":     {t.Context(), errors.New("master: exit status 1"), cli.ExitFailed, "master: exit status 1"},
	} {
		err := runError(tt.ctx, dir, tt.err)
		if code := cli.ExitCode(err); !strings.Contains(err.Error(), tt.want) || code != tt.code && code != cli.ExitUsage { // markFailures adds the code of the last error
			t.Errorf("%s: code %d, %v; want %d, %q", name, code, err, tt.code, tt.want)
		}
		if strings.Contains(err.Error(), "--data-dir") || strings.Contains(err.Error(), "--endpoints") {
			t.Errorf("%s: %v names a flag that master run does not have", name, err)
		}
	}
}

// Settings that tables do not support are refused also for a model that the data selects; so is a removed staleness policy.
func TestRunRefusesTablesOfTheDefaultModel(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"auto", "fm"} {
		r := runArgs(t, "run", "--dataset", "flights", "--model", kind, "--dir", filepath.Join(file, "runs"), "--wire-dtype", "bfloat16")
		r.wants(t, cli.ExitUsage, "tables")
	}
	r := runArgs(t, "run", "--dir", filepath.Join(file, "runs"), "--staleness", "1", "--staleness-policy", "reject")
	r.wants(t, cli.ExitUsage, "expected one of apply, scale")
}
