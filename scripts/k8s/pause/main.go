//go:build linux

// Command pause is the program of the image that keeps the namespaces of a pod: it reaps processes until SIGTERM.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if id, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); id <= 0 || err != nil {
				break
			}
		}
	}
}
