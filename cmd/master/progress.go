package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/master"
	"trainmaster/master/evaluation"
	"trainmaster/master/podmanager"
	"trainmaster/master/pods"
	"trainmaster/master/progress"
)

// publisher returns the component that writes the progress to the Job of the master's pod.
func (s *daemonSettings) publisher(config *master.Config) *progress.Publisher {
	manager := config.Pods
	return progress.New(progress.Config{
		Owner: s.pods.owner, Passes: config.Queue.Passes, Figure: s.evaluation.config.Best.Figure, Log: config.Log,
		Scale: manager.FollowWorkers,
		Pods: func() (workers, servers int, waiting string) {
			summary, err := manager.Summary()
			if err != nil {
				return 0, 0, "" // the term has ended
			}
			for _, g := range summary.Groups {
				if g.Role == podmanager.Worker {
					workers = g.Running
				} else {
					servers = g.Running
				}
			}
			return workers, servers, waitingPods(summary)
		},
	})
}

// waitingPods returns why pods do not run; "": all run, or the cluster has no reason yet.
func waitingPods(s pods.Summary) string {
	if s.Problem != "" {
		return "pods are not observed: " + s.Problem
	}
	for _, g := range s.Groups {
		if g.Pending > 0 && g.Reason != "" {
			return fmt.Sprintf("%d of %d %s pods run: %s", g.Running, g.Goal, g.Role, g.Reason)
		}
	}
	return ""
}

// publishEnd publishes the progress of a job that has ended.
func (s *daemonSettings) publishEnd(ctx context.Context, store *etcdstore.Store) error {
	queue, _, err := admin.ReadQueue(ctx, store, admin.Location{Etcd: s.etcd, DataDir: &s.dataDir})
	if err != nil {
		return err
	}
	evaluated, _, err := store.Value(ctx, evaluation.Key)
	if err != nil {
		return err
	}
	overview := queue.Overview()
	return s.progress.Final(ctx, &overview, evaluated)
}

// endStep is a request to the cluster after the end of a job.
type endStep struct {
	failure string // for the log
	do      func() error
}

// settled executes all steps. It returns outcome, the result of the job, if they succeed. In a pod, a step that fails ends the process with the
// code 3, also of a failed job: the next pod of the Job repeats the steps. Otherwise nothing would start the master again, and the failure is logged only.
func settled(outcome error, inPod bool, log *logrus.Entry, steps []endStep) error {
	var failures error
	for _, step := range steps {
		if err := step.do(); err != nil {
			log.WithError(err).Error(step.failure)
			failures = errors.Join(failures, err)
		}
	}
	//guard:unsettled-end-is-repeated
	if failures != nil && inPod {
		return cli.ExitWith(cli.ExitStore, fmt.Errorf("the job has ended, and the cluster did not take all requests: another start repeats them: %w", failures))
	}
	return outcome
}
