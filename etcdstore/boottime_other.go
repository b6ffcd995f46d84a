//go:build !linux

package etcdstore

import "time"

var processStart = time.Now()

// bootTime is the monotonic clock here. It may stop while the machine is suspended. Then only the fence of each commit, not
// [Lock.Valid], stops a resumed holder whose time has run out.
func bootTime() time.Duration { return time.Since(processStart) }
