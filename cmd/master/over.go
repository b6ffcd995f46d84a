package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore"
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
	passes := fmt.Sprintf("%d passes", o.passes)
	if o.passes == 1 {
		passes = "1 pass"
	}
	if o.status == taskqueue.Failed {
		return withReason(fmt.Sprintf("failed in pass %d", o.passes), o.reason)
	}
	return withReason("ended after "+passes, o.reason)
}

// sayHowItEnded logs why a master that led or stood by leaves: the job is over, or the master was told to stop before.
func sayHowItEnded(ctx context.Context, store *etcdstore.Store, log *logrus.Entry) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()
	switch o, err := storedOutcome(bounded, store); {
	case err == nil && o.over():
		log.Infof("done: the job %v", o)
	case err != nil:
		log.WithError(err).Warn("stopped; whether the job is over is not known")
	default:
		log.Info("stopped before the job was over; start it again to go on")
	}
}

const outcomeTimeout = 2 * time.Second // a process that was told to stop does not wait for etcd
