//go:build !linux

package etcdstore

import "time"

var processStart = time.Now()

// bootTime is the monotonic clock here. It may stand still while the machine is
// suspended; then only the fence of each commit, not [Lock.Valid], tells a
// woken holder that its time is up.
func bootTime() time.Duration { return time.Since(processStart) }
