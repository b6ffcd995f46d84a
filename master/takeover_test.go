package master_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/master/store"
)

// outcomes is a store that reports the result of each takeover.
type outcomes struct {
	*etcdstore.Store
	of chan error
}

func (s outcomes) TakeOver(ctx context.Context, suspect store.Candidate, by store.Takeover) error {
	err := s.Store.TakeOver(ctx, suspect, by)
	select {
	case s.of <- err:
	case <-ctx.Done():
	}
	return err
}

// Two masters reach etcd, but not each other, so each takes the other for dead. Each term begins with a commit, so no
// term looks unable to commit. The first takeover holds off all later takeovers.
func TestTakeoversBetweenUnconnectedMastersAreHeldDown(t *testing.T) {
	etcd := outcomes{etcdtest.Store(t), make(chan error)}
	ctx, cancel := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	defer ran.Wait()
	defer cancel()
	start := func(nobody string) *master.Master { // address without a listener
		logger, _ := logtest.NewNullLogger()
		m, err := master.New(master.Config{Store: etcd, Log: logrus.NewEntry(logger), Advertise: nobody, Holddown: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		ran.Go(func() {
			if err := m.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		return m
	}
	mastertest.Eventually(t, "the first leader", start("127.0.0.1:1").Leading) // and began the job before the other master queues
	start("127.0.0.1:2")
	const most = 4 // one takeover, and attempts of a standby that has not read the state yet
	for forced, held := 0, 0; held < 3; {
		select {
		case err := <-etcd.of:
			switch {
			case err == nil:
				if forced++; forced > most {
					t.Fatalf("takeovers: found %d forced and %d held off, expected one in an hour", forced, held)
				}
			case errors.Is(err, store.ErrHeldDown):
				held++
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("expected further attempts: found %d forced and %d held off", forced, held)
		}
	}
}
