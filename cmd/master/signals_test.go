package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// Two signals in a row, as timeout(1) sends them, are one request to stop gracefully. A later signal kills the process.
func TestSignalsInARowStopOnce(t *testing.T) {
	for _, c := range []struct {
		name   string
		pauses []time.Duration // before each signal
		kills  int
	}{
		{"one", []time.Duration{0}, 0},
		{"two without pause", []time.Duration{0, 0}, 0},
		{"two within 200 ms", []time.Duration{0, 200 * time.Millisecond}, 0},
		{"a second one later", []time.Duration{0, 2 * time.Second}, 1},
		{"two without pause, one later", []time.Duration{0, 0, 2 * time.Second}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signals := make(chan os.Signal)
				kills := 0
				ctx := untilSignal(t.Context(), signals, func(os.Signal) { kills++ })
				for _, pause := range c.pauses {
					time.Sleep(pause) // of the bubble
					signals <- syscall.SIGTERM
				}
				synctest.Wait()
				if ctx.Err() == nil || kills != c.kills {
					t.Errorf("context: %v, killed %d times, want it ended and %d", ctx.Err(), kills, c.kills)
				}
				if kills == 0 {
					time.Sleep(signalPause)
					signals <- syscall.SIGINT // lets the goroutine end
				}
			})
		})
	}
}

func TestSecondSignalEndsProcessStartedWithSignalIgnored(t *testing.T) {
	const variable = "KILL_BY_INTERRUPT"
	if os.Getenv(variable) != "" { // in the process that the shell starts
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
		killBy(os.Interrupt)
		return
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", `trap "" INT; exec "$0" -test.run "$1"`, binary, "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"=yes")
	err = cmd.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != 130 {
		t.Errorf("ended with %v, want exit code 130", err)
	}
}
