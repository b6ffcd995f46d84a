package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore"
	"trainmaster/master"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// site is a master at work on a synthetic dataset, in this process.
type site struct {
	*master.Master
	store  *watchedStore
	cancel context.CancelFunc
	ran    chan struct{}
	err    error // of Run, once ran is closed
}

// startSite starts a master of a job whose dataset has the given number of tasks. The first master
// registers the dataset, the others find it in etcd.
func startSite(ctx context.Context, endpoint string, tasks int) (*site, error) {
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{endpoint}, Job: "tasks-" + strconv.Itoa(tasks)})
	if err != nil {
		return nil, err
	}
	s := &site{store: &watchedStore{Store: store}, ran: make(chan struct{})}
	config := master.Config{Store: s.store, Log: silent(), Advertise: "bench", Shuffle: true, Seed: 1, Queue: taskqueue.Options{Rolling: true}}
	if s.Master, err = master.New(config); err != nil {
		_ = store.Close()
		return nil, err
	}
	ctx, s.cancel = context.WithCancel(ctx)
	go func() {
		defer close(s.ran)
		s.err = s.Run(ctx)
	}()
	if err := s.begin(ctx, tasks); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func silent() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// begin waits until the master leads, and registers the dataset unless it is known.
func (s *site) begin(ctx context.Context, tasks int) error {
	if err := s.awaitLeading(ctx); err != nil {
		return err
	}
	overview, err := s.Overview(ctx)
	if err != nil || len(overview.Sets) > 0 {
		return err
	}
	table, err := syntheticTable(tasks)
	if err != nil {
		return err
	}
	return s.Register(ctx, table, sha256.Sum256([]byte("synthetic")))
}

// leadingPoll is short because the first answer of a new leader is timed.
const leadingPoll = 200 * time.Microsecond

func (s *site) awaitLeading(ctx context.Context) error {
	poll := time.NewTicker(leadingPoll)
	defer poll.Stop()
	for !s.Leading() {
		select {
		case <-s.ran:
			return fmt.Errorf("the master stopped: %w", s.err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
		}
	}
	return nil
}

// close resigns and disconnects.
func (s *site) close() error {
	s.cancel()
	<-s.ran
	return errors.Join(s.err, s.store.Close())
}

// watchedStore counts what its master commits.
type watchedStore struct {
	*etcdstore.Store
	lock       atomic.Pointer[watchedLock]
	commits    atomic.Int64
	stateBytes atomic.Int64 // sum of all commits
	putBytes   atomic.Int64 // keys and values of all commits, the state included
}

// commitCounters are running totals of a watchedStore.
type commitCounters struct{ commits, stateBytes, putBytes int64 }

func (w *watchedStore) counters() commitCounters {
	return commitCounters{w.commits.Load(), w.stateBytes.Load(), w.putBytes.Load()}
}

// Lead notes when and how the lock was won.
func (w *watchedStore) Lead(ctx context.Context, c store.Campaign) (store.Leadership, error) {
	lead, err := w.Store.Lead(ctx, c)
	if err != nil {
		return nil, err
	}
	lock := &watchedLock{Leadership: lead, store: w, won: time.Now()}
	w.lock.Store(lock)
	return lock, nil
}

type watchedLock struct {
	store.Leadership
	store *watchedStore
	won   time.Time
}

// Commit counts the bytes of a commit.
func (l *watchedLock) Commit(ctx context.Context, expectMod int64, state []byte, writes []taskqueue.Write) (int64, error) {
	bytes := len(taskqueue.StateKey) + len(state)
	for i := range writes {
		bytes += len(writes[i].Key) + len(writes[i].Value)
	}
	l.store.commits.Add(1)
	l.store.stateBytes.Add(int64(len(state)))
	l.store.putBytes.Add(int64(bytes))
	return l.Leadership.Commit(ctx, expectMod, state, writes)
}

// key is the lock's key in etcd.
func (l *watchedLock) key() string { return l.Leadership.(interface{ Key() string }).Key() }
