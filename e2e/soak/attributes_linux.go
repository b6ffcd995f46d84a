package main

import "syscall"

// childAttributes returns attributes for a child with its own process group, so that Ctrl-C reaches only this program.
// The child is killed when the thread that started it ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
