//go:build unix && !linux

package local

import "syscall"

// childAttributes gives a child a process group of its own, so that Ctrl-C reaches it
// through this process, in order.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// groupRuns reports whether a process group has a process.
func groupRuns(id int) bool { return groupExists(id) }
