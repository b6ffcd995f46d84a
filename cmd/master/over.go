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

// outcome is what the stored state of a job says of its end. The zero value: it is not over, or never began.
type outcome struct {
	status taskqueue.Status
	reason string
	passes taskqueue.Pass // of the first dataset, that were begun
}

// storedOutcome reads how far a job is that no master need lead.
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

// sayHowItEnded logs why a master that led or stood by leaves: the job is over, or the master was told to stop before.
// The error is that of a job that ended without some of its tasks.
func sayHowItEnded(ctx context.Context, store *etcdstore.Store, from place, log *logrus.Entry) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()
	o, err := storedOutcome(bounded, store)
	switch {
	case err != nil:
		log.WithError(err).Warn("stopped; whether the job is over is not known")
		return nil
	case !o.over():
		log.Info("stopped before the job was over; start it again to go on")
		return nil
	}
	log.Infof("done: the job %v", o)
	return reportSetAside(bounded, store, o, from, log)
}

// reportSetAside logs which tasks a job ended without. The error, if there are any, has an exit code of its own.
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

const setAsideShown = 10 // in the last lines of a log

// setAsideError is what a job ends with that went without some of its tasks; nil: there are none.
func setAsideError(tasks int, look string) error {
	//guard:exit-code-of-set-aside-tasks
	if tasks == 0 {
		return nil
	}
	return &exitError{exitSetAside, fmt.Errorf("the job ended without all of its tasks: expected none set aside, found %d: see them with: %s", tasks, look)}
}

const outcomeTimeout = 2 * time.Second // a process that was told to stop does not wait for etcd
