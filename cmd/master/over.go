package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore"
	"trainmaster/local"
	"trainmaster/taskqueue"
)

// outcome is the end of a job by its stored state. The zero value: it has not ended, or never began.
type outcome struct {
	status taskqueue.Status
	reason string
	passes taskqueue.Pass // passes of the first dataset that have begun
}

// storedOutcome reads the outcome of a job from etcd. It needs no master.
func storedOutcome(ctx context.Context, store *etcdstore.Store) (outcome, error) {
	stored, _, err := store.State(ctx)
	if err != nil || stored == nil {
		return outcome{}, err
	}
	var state taskqueue.Snapshot
	if err := etcdstore.Decode(stored, &state, maxStateDecoded); err != nil {
		return outcome{}, fmt.Errorf("read the state: %w", err)
	}
	o := outcome{status: state.Status, reason: state.Reason}
	if len(state.Sets) > 0 {
		o.passes = state.Sets[0].Pass
	}
	return o, nil
}

func (o outcome) over() bool { return o.status == taskqueue.Ended || o.status == taskqueue.Failed }

func (o outcome) String() string {
	passes := counted(int(o.passes), "pass")
	if o.status == taskqueue.Failed {
		return withReason(fmt.Sprintf("failed in pass %d", o.passes), o.reason)
	}
	return withReason("ended after "+passes, o.reason)
}

// sayHowItEnded logs why a leader or standby stops: the job has ended, or the process was stopped before. It returns an error if the
// job ended without some of its tasks.
func sayHowItEnded(ctx context.Context, store *etcdstore.Store, from place, log *logrus.Entry) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()
	o, err := storedOutcome(bounded, store)
	switch {
	case err != nil:
		log.WithError(err).Warn("stopped; the state of the job is unknown")
		return nil
	case !o.over():
		log.Info("stopped before the end of the job; start it again to continue")
		return nil
	}
	log.Infof("done: the job %v", o)
	return reportSetAside(bounded, store, o, from, log)
}

// reportSetAside logs the set-aside tasks of a job. If there are any, the error has its own exit code.
func reportSetAside(ctx context.Context, store *etcdstore.Store, o outcome, from place, log *logrus.Entry) error {
	if o.status != taskqueue.Ended {
		return nil
	}
	aside, err := local.SetAsideTasks(ctx, store)
	if err != nil {
		log.WithError(err).Warn("set-aside tasks unknown")
		return nil
	}
	for i, d := range aside {
		if i == setAsideShown {
			log.WithField("tasks", len(aside)-i).Error("more tasks set aside")
			break
		}
		log.WithFields(logrus.Fields{"task": d.Task, "pass": d.Pass, "failures": d.Failures, "losses": d.Losses, "holder": d.Holder, "error": d.Error}).Error("task set aside")
	}
	return setAsideError(len(aside), "master queues --literal "+from.flags())
}

const setAsideShown = 10 // in the last lines of the log

// setAsideError is the error of a job that ended with set-aside tasks; nil if there are none.
func setAsideError(tasks int, look string) error {
	//guard:exit-code-of-set-aside-tasks
	if tasks == 0 {
		return nil
	}
	return &exitError{exitSetAside, fmt.Errorf("the job ended without all of its tasks: expected none set aside, found %d: see them with: %s", tasks, look)}
}

const outcomeTimeout = 2 * time.Second // a process that is stopping does not wait for etcd
