package local

import "syscall"

// childAttributes gives a child a process group of its own, so that Ctrl-C reaches it
// through this process, in order; and the end of this process, however it comes, is its
// own. The latter holds for the thread that starts it: see once.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
