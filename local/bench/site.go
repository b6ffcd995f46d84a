package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/rounds"
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
// registers the dataset, the others find it in etcd. round opens an evaluation round.
func startSite(ctx context.Context, endpoint string, tasks int, round bool) (*site, error) {
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{endpoint}, Job: fmt.Sprintf("tasks-%d-%t", tasks, round)})
	if err != nil {
		return nil, err
	}
	s := &site{store: &watchedStore{Store: store}, ran: make(chan struct{})}
	config := master.Config{Store: s.store, Log: silent(), Advertise: "bench", Shuffle: true, Seed: 1, Queue: taskqueue.Options{Rolling: true}}
	if round {
		evaluation := rounds.New(rounds.Config{Store: s.store, Log: config.Log, Models: fixedModel{}, Register: s.registerHeldOut})
		config.Components, config.Evaluate = []component.Component{evaluation}, evaluation.Evaluate
	}
	if s.Master, err = master.New(config); err != nil {
		_ = store.Close()
		return nil, err
	}
	ctx, s.cancel = context.WithCancel(ctx)
	go func() {
		defer close(s.ran)
		s.err = s.Run(ctx)
	}()
	err = s.begin(ctx, tasks)
	if err == nil && round {
		err = s.openRound(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// registerHeldOut registers an evaluation dataset of 100 tasks without files.
func (s *site) registerHeldOut(ctx context.Context) error {
	return s.ReportSet(ctx, taskqueue.SetSpec{Kind: taskqueue.Evaluation}, []string{"range://held-out?records=1000&per-task=10"})
}

// openRound returns when an evaluation round is open.
func (s *site) openRound(ctx context.Context) error {
	for {
		if round, _, err := s.store.Value(ctx, taskqueue.RoundKey); err != nil || round != nil {
			return err
		}
		if err := s.Evaluate(ctx, ""); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}

// fixedModel is the model of the round.
type fixedModel struct{}

// Pin implements [rounds.Models].
func (fixedModel) Pin(_ context.Context, use func(string, uint64) error) error {
	return use("model", 1)
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
	isTraining := func(s taskqueue.SetOverview) bool { return s.Kind == taskqueue.Training }
	if err != nil || slices.ContainsFunc(overview.Sets, isTraining) {
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
