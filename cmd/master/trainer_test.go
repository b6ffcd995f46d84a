package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/trainer/reference"
)

// A trainer of a job is refused by the master of another job, also if --addr names it.
func TestTrainerOfOtherJobIsRefused(t *testing.T) {
	l := lead(t, master.Config{})
	l.report(4)
	for _, args := range [][]string{
		{"--endpoints", etcdtest.Endpoint(t), "--job", "other", "--servers", "127.0.0.1:1"},
		{"--endpoints", etcdtest.Endpoint(t), "--servers", "127.0.0.1:1"},
		{"--job", "other", "--servers", "127.0.0.1:1"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		var stdout, stderr strings.Builder
		code := execute(ctx, rootCommand(), append([]string{"trainer", "--addr", l.addr}, args...), &stdout, &stderr)
		cancel()
		if want := "no such job here"; code != 1 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: expected exit code 1 and the reason %q, found %d, %s", args, want, code, stderr.String())
		}
	}
	if v, err := l.Overview(t.Context()); err != nil || len(v.Trainers) != 0 {
		t.Errorf("trainers of the job: found %+v, %v, expected none", v.Trainers, err)
	}
}

// A trainer that finds no master after the end of the job has a code that master run repeats.
func TestTrainerWithoutASaverHasTheCodeOfAStart(t *testing.T) {
	if code := cli.ExitCode(saverCode(fmt.Errorf("model not saved: %w", reference.ErrNoSaver))); code != cli.ExitStore {
		t.Errorf("found code %d, expected %d", code, cli.ExitStore)
	}
	if other := errors.New("disk is full"); saverCode(other) != other {
		t.Errorf("another error: found %v", saverCode(other))
	}
}
