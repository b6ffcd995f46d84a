package admin

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// askWhetherOver is the time without a leader after which a trainer reads the state of the job from etcd.
const askWhetherOver = 2 * time.Second

// FollowLeader passes the address of each leader to follow, until ctx ends. If no master leads because the job has ended, it passes the end.
func FollowLeader(ctx context.Context, store *etcdstore.Store, follow *trainer.Follow, log *logrus.Entry) {
	leaders := store.WatchMasterAddr(ctx)
	ask := time.NewTimer(askWhetherOver)
	defer ask.Stop()
	ask.Stop() // until the watch reports that no master leads
	for {
		select {
		case a, ok := <-leaders:
			if !ok {
				return
			}
			if ask.Stop(); a.Addr == "" {
				log.Info("waiting for a master to lead; start one with: master --endpoints ... --ps N")
				ask.Reset(askWhetherOver)
			}
			follow.Set(a.Addr, a.Term)
		case <-ask.C:
			switch over := overWithoutMasters(ctx, store); {
			case len(leaders) > 0: // a leader was announced since
			case over != nil:
				follow.End(over)
			default:
				ask.Reset(askWhetherOver)
			}
		}
	}
}

// overWithoutMasters returns io.EOF or trainer.ErrJobFailed if the job has ended and no master waits for the lock, else nil.
func overWithoutMasters(ctx context.Context, store *etcdstore.Store) error {
	ctx, cancel := context.WithTimeout(ctx, OutcomeTimeout)
	defer cancel()
	masters, _, err := store.Prefixed(ctx, etcdstore.LockPrefix)
	if err != nil || len(masters) > 0 {
		return nil
	}
	o, err := StoredOutcome(ctx, store)
	switch {
	case err == nil && o.Status == taskqueue.Ended:
		return io.EOF
	case err == nil && o.Status == taskqueue.Failed:
		return fmt.Errorf("%w: the job %v", trainer.ErrJobFailed, o)
	}
	return nil
}
