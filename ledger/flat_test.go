package ledger_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/ledger"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

var finishes = flag.Int("finishes", 20_000, "finished tasks of TestDatabaseStaysFlat")

// The size of the etcd database stays flat over many finished tasks, with the ledger in etcd or in a directory. The
// ledger has an entry of each finish. For a million tasks:
//
//	go test ./ledger -run TestDatabaseStaysFlat -finishes 1000000 -v -timeout 1h
func TestDatabaseStaysFlat(t *testing.T) {
	bothWays(t, func(t *testing.T, inFolder bool) {
		if !inFolder && *finishes > 100_000 {
			t.Skip("a run of more tasks uses a directory")
		}
		etcd, err := etcdstore.StartEmbedded(t.Context(), etcdstore.EmbeddedConfig{Dir: t.TempDir(), UnsafeNoFsync: true})
		if err != nil {
			t.Fatal(err)
		}
		defer etcd.Close()
		store := etcdtest.Open(t, etcd.Endpoint(), "")
		const tasks, trainers = 1000, 16
		passes := max(1, *finishes/tasks)
		config := ledger.Config{Every: 100, Keep: ledger.Keep{Bytes: 8 << 10}}
		if inFolder {
			config.Dir, config.Keep = t.TempDir(), ledger.Keep{All: true}
		}
		m, stop := leadsFlat(t, store, passes, config)
		defer stop()
		group, ctx := errgroup.WithContext(t.Context())
		var sealing sync.RWMutex // held while sealing lags: the test does not measure the speed of sealing
		for i := range trainers {
			group.Go(func() error {
				return works(ctx, m, fmt.Sprint("trainer-", i), func() { sealing.RLock(); defer sealing.RUnlock() })
			})
		}
		done := make(chan error, 1)
		go func() { done <- group.Wait() }()
		var sizes []int64
		for every := passes / 10; ; time.Sleep(20 * time.Millisecond) { // interval between samples of the size
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				wantFlat(t, sizes)
				wantEntries(t, store, passes, tasks, inFolder)
				return
			default:
			}
			s, err := m.Status(ctx)
			if err == nil && s.Commit > s.Ledger.Sealed+2*config.Every {
				sealing.Lock()
				mastertest.Eventually(t, "sealing keeps up", func() bool {
					s, err := m.Status(ctx)
					return err != nil || s.Commit <= s.Ledger.Sealed+config.Every
				})
				sealing.Unlock()
			}
			if err == nil && len(s.Sets) == 1 && int(s.Sets[0].Pass) > (len(sizes)+1)*max(1, every) {
				size, err := store.Size(ctx)
				if err != nil {
					t.Fatal(err)
				}
				sizes = append(sizes, size.Total)
				t.Logf("pass %d, commit %d, sealed to %d: database %d KiB, of it in use %d KiB, ledger %d KiB", s.Sets[0].Pass, s.Commit, s.Ledger.Sealed, size.Total>>10, size.InUse>>10, s.Ledger.Bytes>>10)
			}
		}
	})
}

func leadsFlat(t *testing.T, store *etcdstore.Store, passes int, sealing ledger.Config) (*master.Master, func()) {
	t.Helper()
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	log := logrus.NewEntry(quiet)
	config := master.Config{Store: store, Log: log, Shuffle: true, Advertise: "here"}
	config.Ledger = &ledger.Sealer{Store: store, Config: sealing, Log: log}
	config.Queue.Passes = passes
	m, err := master.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running errgroup.Group
	running.Go(func() error { return m.Run(ctx) })
	running.Go(func() error { return store.CompactLoop(ctx, 100*time.Millisecond, 100) })
	mastertest.Eventually(t, "leadership", m.Leading)
	if err := m.Register(t.Context(), mastertest.Table(t, 1000), mastertest.Digest(1000)); err != nil {
		t.Fatal(err)
	}
	return m, func() {
		cancel()
		if err := running.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// works takes and finishes tasks until the job ends.
func works(ctx context.Context, m *master.Master, id string, let func()) error {
	s, err := m.Join(ctx, id, "")
	if err != nil {
		return err
	}
	return mastertest.NewTrainer(s, m).WorkWhile(ctx, let)
}

// wantFlat checks that the database stops growing: at the end it is at most twice as large as after a third of the
// run. In a short run the times of compactions dominate; wantEntries then checks that sealed commits are deleted.
func wantFlat(t *testing.T, sizes []int64) {
	t.Helper()
	if len(sizes) < 5 {
		t.Fatalf("sampled %d times: %v", len(sizes), sizes)
	}
	if begin, end := sizes[len(sizes)/3], sizes[len(sizes)-1]; end > 2*begin {
		t.Errorf("database: expected no growth, found %d and then %d KiB: %v", begin>>10, end>>10, sizes)
	}
}

// wantEntries checks that the ledger has each finish that it keeps.
func wantEntries(t *testing.T, store *etcdstore.Store, passes, tasks int, all bool) {
	t.Helper()
	state, _, _ := mastertest.State(t, store)
	left, _, _, err := store.LedgerEntries(t.Context(), 1, state.Commit, int(state.Commit))
	if err != nil || len(left) > int(state.Commit)/2 {
		t.Errorf("of %d commits %d are still in etcd, %v", state.Commit, len(left), err)
	}
	reader, err := ledger.Open(t.Context(), store, "", "")
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := taskqueue.ResumeVerifier(reader.Outline())
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range reader.Entries(t.Context(), state.Commit) {
		if err == nil {
			err = verifier.Add(e.Commit, e.Events)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := verifier.CrossCheck(state); err != nil {
		t.Error(err)
	}
	reports, from := verifier.Report(), reader.Outline().Commit+1
	if len(reports) != passes || all && from != 1 || !all && from == 1 {
		t.Errorf("%d passes, kept from commit %d", len(reports), from)
	}
	for _, p := range reports {
		if !p.Unseen && p.CountedOnce != tasks || p.Unseen && all {
			t.Fatalf("%+v", p)
		}
	}
}
