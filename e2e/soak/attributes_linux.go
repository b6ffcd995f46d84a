package main

import "syscall"

// childAttributes gives a child a process group of its own, so that Ctrl-C is for this program alone, and lets it end
// with the thread that started it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
