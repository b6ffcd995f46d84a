package main

import (
	"context"

	"github.com/sirupsen/logrus"

	"trainmaster/cmd/internal/admin"
	"trainmaster/etcdstore"
	"trainmaster/master"
	"trainmaster/master/evaluation"
	"trainmaster/master/podmanager"
	"trainmaster/master/progress"
)

// publisher returns the component that writes the progress to the Job of the master's pod.
func (s *daemonSettings) publisher(config *master.Config) *progress.Publisher {
	pods := config.Pods
	return progress.New(progress.Config{
		Owner: s.pods.owner, Passes: config.Queue.Passes, Figure: s.evaluation.config.Best.Figure, Log: config.Log,
		Scale: func(ctx context.Context, workers int) error {
			_, err := pods.ScaleWorkers(ctx, workers)
			return err
		},
		Pods: func() (workers, servers int) {
			summary, err := pods.Summary()
			if err != nil {
				return 0, 0 // the term has ended
			}
			for _, p := range summary.Pods {
				switch {
				case p.Phase != string(podmanager.Running):
				case p.Role == podmanager.Worker:
					workers++
				default:
					servers++
				}
			}
			return workers, servers
		},
	})
}

// publishEnd publishes the progress of a job that has ended.
func (s *daemonSettings) publishEnd(ctx context.Context, store *etcdstore.Store, log *logrus.Entry) {
	queue, _, err := admin.ReadQueue(ctx, store, admin.Location{Etcd: s.etcd, DataDir: &s.dataDir})
	if err == nil {
		var evaluated []byte
		if evaluated, _, err = store.Value(ctx, evaluation.Key); err == nil {
			overview := queue.Overview()
			err = s.progress.Final(ctx, &overview, evaluated)
		}
	}
	if err != nil {
		log.WithError(err).Error("progress of the ended job not published: the annotation of the Job has an earlier state")
	}
}
