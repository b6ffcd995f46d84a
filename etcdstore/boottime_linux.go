package etcdstore

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is CLOCK_BOOTTIME: it never steps, and advances while the machine is suspended.
func bootTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic("read CLOCK_BOOTTIME: " + err.Error()) // Linux has had it since 2.6.39
	}
	return time.Duration(now.Nano())
}
