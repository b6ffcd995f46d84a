// Package procgroup runs commands in process groups of their own.
//
// A command may be a shell script or a launcher that starts the program as its child. Each command leads a process group, so signals go to the
// group and reach the program too. A process that leaves the group (setsid) is out of reach.
package procgroup

import (
	"errors"
	"sync"
	"syscall"
	"time"
)

const (
	groupPoll = 20 * time.Millisecond
	groupGone = 5 * time.Second // from SIGKILL to the end of a group; a process that waits for a disk may take longer
)

// groups has the ids of the process groups that run.
var groups sync.Map

// KillAll kills the process groups of all running commands. It is for a process that ends without stopping them in order.
func KillAll() {
	groups.Range(func(id, _ any) bool {
		_ = signalGroup(id.(int), syscall.SIGKILL) // the group may have ended
		return true
	})
}

// signalGroup signals all processes of a group. A group without processes is no error.
func signalGroup(id int, s syscall.Signal) error {
	if err := syscall.Kill(-id, s); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

func groupExists(id int) bool { return !errors.Is(syscall.Kill(-id, 0), syscall.ESRCH) }

// endGroup ends the remaining processes of a group whose leader was reaped. It waits until the deadline, and then kills them. It
// reports whether it killed any. While a group has a process, its id is not given to another process.
func endGroup(id int, deadline time.Time) (killed bool) {
	for groupRuns(id) {
		if !time.Now().Before(deadline) {
			killed = true
			break
		}
		time.Sleep(groupPoll)
	}
	if !killed {
		return false
	}
	//guard:process-group-killed
	_ = signalGroup(id, syscall.SIGKILL) // it may have ended
	for limit := time.Now().Add(groupGone); groupRuns(id) && time.Now().Before(limit); {
		time.Sleep(groupPoll)
	}
	return true
}
