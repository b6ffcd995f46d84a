//go:build unix && !linux

package procgroup

import "syscall"

// attributes gives a child a process group of its own, so that Ctrl-C reaches it
// through this process, in order.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// groupRuns reports whether a process group has a process.
func groupRuns(id int) bool { return groupExists(id) }
