package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore"
	"trainmaster/local"
	"trainmaster/master/committer"
	"trainmaster/taskqueue"
)

// JobOutcome is the end of a job by its stored state. The zero value: it has not ended, or never began.
type JobOutcome struct {
	Status taskqueue.Status
	reason string
	passes taskqueue.Pass // passes of the first training dataset that have begun
}

// StoredOutcome reads the outcome of a job from etcd. It needs no master.
func StoredOutcome(ctx context.Context, store *etcdstore.Store) (JobOutcome, error) {
	stored, _, err := store.State(ctx)
	if err != nil || stored == nil {
		return JobOutcome{}, err
	}
	var state taskqueue.Snapshot
	if err := etcdstore.Decode(stored, &state, committer.MaxStoredState); err != nil {
		return JobOutcome{}, fmt.Errorf("read the state: %w", err)
	}
	o := JobOutcome{Status: state.Status, reason: state.Reason}
	for _, s := range state.Sets {
		if s.Kind == taskqueue.Training {
			o.passes = s.Pass
			break
		}
	}
	return o, nil
}

// Ended reports whether the job has ended or failed.
func (o JobOutcome) Ended() bool { return o.Status == taskqueue.Ended || o.Status == taskqueue.Failed }

// String formats the outcome as the end of a sentence about the job.
func (o JobOutcome) String() string {
	switch failed := o.Status == taskqueue.Failed; {
	case failed && o.passes == 0: // before its dataset, or without tasks
		return view.WithReason("failed", o.reason)
	case failed:
		return view.WithReason(fmt.Sprintf("failed in pass %d", o.passes), o.reason)
	case o.passes == 0:
		return view.WithReason("ended", o.reason)
	}
	return view.WithReason("ended after "+cli.Counted(int(o.passes), "pass"), o.reason)
}

// LogOutcome logs why a leader or standby stops: the job has ended, or the process was stopped before. It returns an error if the
// job ended without some of its tasks. In a pod, each outcome but the end of a complete job is an error.
func LogOutcome(ctx context.Context, store *etcdstore.Store, from Location, log *logrus.Entry) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), OutcomeTimeout)
	defer cancel()
	o, err := StoredOutcome(bounded, store)
	switch {
	case err != nil:
		log.WithError(err).Warn("stopped; the state of the job is unknown")
		return cli.ErrOutcomeUnknown
	case !o.Ended():
		log.Info("stopped before the end of the job; start it again to continue")
		//guard:stopped-master-in-a-pod
		return cli.ErrStopped
	}
	log.Infof("done: the job %v", o)
	return ReportSetAside(bounded, store, o, from, log)
}

// ReportSetAside logs the set-aside tasks of a job that has ended. If there are any, the error has its own exit code.
func ReportSetAside(ctx context.Context, store *etcdstore.Store, o JobOutcome, from Location, log *logrus.Entry) error {
	if o.Status == taskqueue.Failed {
		return cli.ErrStoppedFailed
	}
	setAside, err := local.SetAsideTasks(ctx, store)
	if err != nil {
		log.WithError(err).Warn("set-aside tasks unknown")
		return cli.ErrOutcomeUnknown
	}
	for i, d := range setAside {
		if i == setAsideShown {
			log.WithField("tasks", len(setAside)-i).Error("more tasks set aside")
			break
		}
		log.WithFields(logrus.Fields{"task": d.Task, "pass": d.Pass, "failures": d.Failures, "losses": d.Losses, "holder": d.Holder, "error": d.Error}).Error("task set aside")
	}
	return SetAsideError(len(setAside), "master queues --literal "+from.Flags())
}

const setAsideShown = 10 // in the last lines of the log

// SetAsideError is the error of a job that ended with set-aside tasks; nil if there are none.
func SetAsideError(tasks int, look string) error {
	//guard:exit-code-of-set-aside-tasks
	if tasks == 0 {
		return nil
	}
	return cli.ExitWith(cli.ExitSetAside, fmt.Errorf("the job ended without all of its tasks: expected none set aside, found %d: see them with: %s", tasks, look))
}

const OutcomeTimeout = 2 * time.Second // a process that is stopping does not wait for etcd
