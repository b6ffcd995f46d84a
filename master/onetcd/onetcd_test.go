package onetcd_test

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
	"trainmaster/master/onetcd"
	"trainmaster/taskqueue"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// What the store cannot read is damaged in the words of the cores, so that a master gives up
// instead of trying again; other settings are another job's.
func TestWords(t *testing.T) {
	store := onetcd.Store{Store: etcdtest.Store(t)}
	settings := map[string]string{"seed": "1"}
	if err := store.EnsureJob(t.Context(), "default", settings); err != nil {
		t.Fatal(err)
	}
	if err := store.EnsureJob(t.Context(), "default", map[string]string{"seed": "2"}); !errors.Is(err, master.ErrOtherJob) || errors.Is(err, taskqueue.ErrDamaged) {
		t.Errorf("other settings: %v", err)
	}
	if _, err := store.Client().Put(t.Context(), store.Prefix()+"/job", "no JSON"); err != nil {
		t.Fatal(err)
	}
	if err := store.EnsureJob(t.Context(), "default", settings); !errors.Is(err, taskqueue.ErrDamaged) || !errors.Is(err, etcdstore.ErrCorrupt) {
		t.Errorf("damaged settings: %v", err)
	}
	if _, err := store.Parts(t.Context(), "nobody", 1); !errors.Is(err, taskqueue.ErrDamaged) {
		t.Errorf("parts that are not there: %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := store.EnsureJob(canceled, "default", settings); err == nil || errors.Is(err, taskqueue.ErrDamaged) {
		t.Errorf("no answer: %v", err)
	}
	if value, err := store.Value(t.Context(), "/nothing"); value != nil || err != nil {
		t.Errorf("an absent key: %q, %v", value, err)
	}
}

// A forced take-over within the hold-down of another is told as such.
func TestHolddown(t *testing.T) {
	store := onetcd.Store{Store: etcdtest.Store(t), LeaseTTL: 5 * time.Second}
	depose := func() error {
		lease := make(chan string, 1)
		lock, err := store.Campaign(t.Context(), "127.0.0.1:1", func(l string) { lease <- l })
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Resign(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var leader master.Suspect
		if err := store.WatchLeader(ctx, func(s master.Suspect) {
			leader = s
			cancel()
		}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if leader.Lease != <-lease || leader.Address != "127.0.0.1:1" || leader.Revision != lock.Revision() {
			t.Errorf("the leader is %+v", leader)
		}
		return store.Depose(t.Context(), leader, master.Takeover{Holddown: 5 * time.Second})
	}
	if err := depose(); err != nil {
		t.Errorf("the first one: %v", err)
	}
	if err := depose(); !errors.Is(err, master.ErrHeldDown) {
		t.Errorf("the second one: %v", err)
	}
}

// outcomes is a store that tells what became of each take-over.
type outcomes struct {
	onetcd.Store
	of chan error
}

func (s outcomes) Depose(ctx context.Context, suspect master.Suspect, by master.Takeover) error {
	err := s.Store.Depose(ctx, suspect, by)
	select {
	case s.of <- err:
	case <-ctx.Done():
	}
	return err
}

// Two masters that reach etcd and not each other take each other for dead. Each term begins with a commit, so that neither is
// ever one that cannot commit: the first take-over holds off all that would follow.
func TestMastersThatDoNotSeeEachOther(t *testing.T) {
	store := outcomes{onetcd.Store{Store: etcdtest.Store(t), LeaseTTL: 5 * time.Second}, make(chan error)}
	ctx, cancel := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	defer ran.Wait()
	defer cancel()
	start := func(nobody string) *master.Master { // listens there
		logger, _ := logtest.NewNullLogger()
		m, err := master.New(master.Config{Advertise: nobody, Holddown: time.Hour}, store, nil, logrus.NewEntry(logger))
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
	mastertest.Eventually(t, "the first one leads", start("127.0.0.1:1").Leading) // and began the job before the other one queues
	start("127.0.0.1:2")
	const most = 4 // one, and those of a stand-by that has not seen the state yet
	for forced, held := 0, 0; held < 3; {
		select {
		case err := <-store.of:
			switch {
			case err == nil:
				if forced++; forced > most {
					t.Fatalf("%d take-overs were forced, %d held off: expected one in an hour", forced, held)
				}
			case errors.Is(err, master.ErrHeldDown):
				held++
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("no take-over is tried any more: %d were forced, %d held off", forced, held)
		}
	}
}
