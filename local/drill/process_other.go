//go:build unix && !linux

package drill

import (
	"errors"
	"syscall"
)

// startTime is not known here.
func startTime(pid int) (ticks uint64, ok bool) { return 0, syscall.Kill(pid, 0) == nil }

// lives reports whether a process of that number still runs.
func (p Process) lives() bool { return syscall.Kill(p.PID, 0) == nil }

// listener finds no process: that takes Linux's /proc.
func listener(string) (Process, error) {
	return Process{}, errors.New("which process leads can be found on Linux only: name it with --pid")
}
