package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"trainmaster/internal/procgroup"
)

// signalPause is the time after the first signal in which others are taken for the same request. timeout(1), for example,
// signals its child and then the group that the child is in, and a shell signals the whole group.
const signalPause = time.Second

// untilSignal returns a context that ends with the first of the signals. A signal that follows after signalPause goes to kill.
func untilSignal(ctx context.Context, signals <-chan os.Signal, kill func(os.Signal)) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		<-signals
		cancel()
		for first := time.Now(); ; {
			//guard:signal-pause
			if again := <-signals; time.Since(first) >= signalPause {
				kill(again)
				return
			}
		}
	}()
	return ctx
}

// killBy ends this process and the processes that a run has started by a signal, as if the signal had never been handled.
func killBy(s os.Signal) {
	procgroup.KillAll()
	signal.Reset(s)
	_ = syscall.Kill(os.Getpid(), s.(syscall.Signal)) // the process exists
	// A shell script starts its background commands with SIGINT ignored, and Reset restores that.
	os.Exit(128 + int(s.(syscall.Signal)))
}
