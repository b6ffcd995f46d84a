package bench

import (
	"fmt"
	"syscall"
)

// openFiles raises the soft limit of open files and connections to n if it is lower. It does not change the
// hard limit.
func openFiles(need uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if limit.Cur >= need {
		return nil
	}
	if limit.Max < need {
		return fmt.Errorf("expected that a process may have %d files and connections open, found a limit of %d: raise it (as root: ulimit -Hn %d in the shell that starts this; "+
			"LimitNOFILE= in a systemd unit; --ulimit nofile=%d for a container), or measure with fewer --trainers", need, limit.Max, need, need)
	}
	limit.Cur = need
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit of open files to %d: %w", need, err)
	}
	return nil
}
