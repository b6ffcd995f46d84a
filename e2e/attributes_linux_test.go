package e2e

import "syscall"

// childAttributes makes a process end with the thread that started it, and so with the test binary.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
