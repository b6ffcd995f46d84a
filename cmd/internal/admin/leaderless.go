package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
)

// leaderChecks is the number of checks in a row that find no leader before a process ends. They count instead of the time, since a machine can be
// suspended.
const leaderChecks = 10

// errNoLeader ends a process that works only with a master.
var errNoLeader = errors.New("no master leads")

// WhileLed runs a process of a job until it ends. If no master has led for limit, as far as etcd answers, it stops the process as a signal does, and the
// exit code is [cli.ExitStore]. With 0 there is no limit.
func WhileLed(ctx context.Context, store *etcdstore.Store, limit time.Duration, log *logrus.Entry, run func(context.Context) error) error {
	if limit == 0 {
		return run(ctx)
	}
	running, stop := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if awaitNoLeader(running, store, limit) {
			log.WithField("leader_timeout", limit.String()).Error("stopping: no master leads")
			stop(errNoLeader)
		}
	}()
	err := run(running)
	stop(nil)
	<-done
	if errors.Is(context.Cause(running), errNoLeader) {
		return cli.ExitWith(cli.ExitStore, fmt.Errorf("%w: expected a leader in etcd within %v (--leader-timeout), found none: start a master of the job, and this process again", errNoLeader, limit))
	}
	return err
}

// awaitNoLeader returns true when no master has led for limit. It returns false when ctx ends.
func awaitNoLeader(ctx context.Context, store *etcdstore.Store, limit time.Duration) bool {
	every := limit / leaderChecks
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for missed := 0; missed < leaderChecks; {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
		check, cancel := context.WithTimeout(ctx, OutcomeTimeout)
		leader, err := store.MasterAddr(check)
		cancel()
		missed++
		//guard:short-time-without-a-master
		if err == nil && leader.Addr != "" {
			missed = 0
		}
	}
	//guard:process-without-a-master-ends
	return ctx.Err() == nil
}
