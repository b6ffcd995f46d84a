package admin

import (
	"context"
	"time"

	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore"
	"trainmaster/master/grpcapi"
	"trainmaster/master/rounds"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

const (
	pollEvery   = 200 * time.Millisecond
	pollTimeout = time.Second // then there may be another leader
)

// WatchJob shows the progress of a job until ctx ends. A master that is away is waited for.
func WatchJob(ctx context.Context, config etcdstore.Config, p *view.Progress) {
	defer p.Finish()
	store, err := etcdstore.OpenRetry(ctx, config, nil)
	if err != nil {
		return
	}
	l := LeaderOf(store, config)
	defer func() {
		l.Close()
		_ = store.Close() // nothing was written
	}()
	FollowJob(ctx, l, p)
}

// LeaderOf returns the leader of the job that a store belongs to. The caller closes the store.
func LeaderOf(store *etcdstore.Store, config etcdstore.Config) *Leader {
	return &Leader{location: Location{Etcd: &config}, store: store, closeStore: func() {}}
}

// FollowJob shows the progress of a job until ctx ends.
func FollowJob(ctx context.Context, l *Leader, p *view.Progress) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			showStoredEnd(ctx, l, p)
			return
		case <-ticker.C:
		}
		asking, cancel := context.WithTimeout(ctx, pollTimeout)
		_ = l.Ask(asking, func(ctx context.Context, client pb.AdminClient) error {
			status, err := client.Status(ctx, &pb.StatusRequest{})
			if err == nil {
				p.Show(status)
			}
			return err
		}) // without an answer there is no leader, or it is being replaced
		showRounds(asking, l, p)
		cancel()
	}
}

// showRounds shows the evaluation rounds that have ended since the last call.
func showRounds(ctx context.Context, l *Leader, p *view.Progress) {
	for {
		key := rounds.RecordKey(p.NextRound())
		value, _, err := l.store.Value(ctx, key)
		if err != nil || value == nil {
			return
		}
		list, err := view.Evaluations(map[string][]byte{key: value}, 0)
		if err != nil || list[0].Ended == nil {
			return
		}
		p.ShowRound(list[0])
	}
}

// showStoredEnd shows how a job ended, if it has.
func showStoredEnd(ctx context.Context, l *Leader, p *view.Progress) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), pollTimeout)
	defer cancel()
	showRounds(bounded, l, p)
	queue, _, err := ReadQueue(bounded, l.store, l.location)
	if err != nil { // etcd is away: the job has not ended
		return
	}
	if v := queue.Overview(); v.Status == taskqueue.Ended {
		p.ShowEnd(grpcapi.StatusReply(&v))
	}
}
