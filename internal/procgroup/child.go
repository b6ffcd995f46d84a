package procgroup

import (
	"context"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Child is a command in a process group of its own.
type Child struct {
	Cmd     *exec.Cmd
	Stop    func() syscall.Signal // the signal to the group when the context of Run ends
	Grace   time.Duration         // from this signal to SIGKILL
	Started func(pid int)         // is called after the start; nil: nothing is called
}

// Run runs the command to the end of all processes of its group. When ctx ends, the group gets the signal that Stop returns, and SIGKILL after
// the grace. Remaining processes of the group are killed when the command ends; killed reports that. On Linux, the end of this process kills the command.
func (c Child) Run(ctx context.Context) (killed bool, err error) {
	c.Cmd.SysProcAttr = attributes()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.Cmd.Start(); err != nil {
		return false, err
	}
	id := c.Cmd.Process.Pid
	groups.Store(id, nil)
	defer groups.Delete(id)
	if c.Started != nil {
		c.Started(id)
	}
	ended := make(chan struct{})
	until := make(chan time.Time, 1) // the group may run
	go func() {
		select {
		case <-ended:
			until <- time.Time{}
			return
		case <-ctx.Done():
		}
		deadline := time.Now().Add(c.Grace)
		_ = signalGroup(id, c.Stop()) // it may have ended
		select {
		case <-ended:
		case <-time.After(c.Grace):
			_ = signalGroup(id, syscall.SIGKILL)
		}
		until <- deadline
	}()
	err = c.Cmd.Wait()
	close(ended)
	return endGroup(id, <-until), err
}
