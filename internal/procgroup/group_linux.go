package procgroup

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// attributes gives a child its own process group, so Ctrl-C reaches it only through this
// process, in order. The kernel kills the child if the thread that started it ends, also by
// the end of this process; therefore Run locks the thread.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// groupRuns reports whether a process group has a process that has not ended. Zombies do not count: in a container
// without an init process, orphans remain zombies.
func groupRuns(id int) bool {
	if !groupExists(id) {
		return false
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		// The fields after the name, which is in parentheses: state, parent, group.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 2 && string(fields[2]) == strconv.Itoa(id) && fields[0][0] != 'Z' && fields[0][0] != 'X' {
			return true
		}
	}
	return len(stats) == 0 // without /proc
}
