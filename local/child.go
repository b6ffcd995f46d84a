package local

import (
	"context"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// RunChild runs a command in a process group of its own, to the end of all processes of the group. When ctx ends, the group gets the signal
// that stop returns, and SIGKILL after the timeout. Remaining processes of the group are killed when the command ends. On Linux, the end of this process
// kills the command.
func RunChild(ctx context.Context, cmd *exec.Cmd, stop func() syscall.Signal, timeout time.Duration) error {
	cmd.SysProcAttr = childAttributes()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return err
	}
	id := cmd.Process.Pid
	groups.Store(id, nil)
	var until atomic.Pointer[time.Time] // the group may run
	ended := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		until.Store(new(time.Now().Add(timeout)))
		_ = signalGroup(id, stop()) // it may have ended
		select {
		case <-ended:
		case <-time.After(timeout):
			_ = signalGroup(id, syscall.SIGKILL)
		}
	}()
	err := cmd.Wait()
	close(ended)
	<-stopped
	var deadline time.Time
	if t := until.Load(); t != nil {
		deadline = *t
	}
	endGroup(id, deadline)
	groups.Delete(id)
	return err
}
