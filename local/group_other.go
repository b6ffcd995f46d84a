//go:build unix && !linux

package local

import "syscall"

// childAttributes gives a child a process group of its own, so that Ctrl-C reaches it
// through this process, in order.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
