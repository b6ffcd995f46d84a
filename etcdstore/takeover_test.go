package etcdstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master/store"
)

// The pause before a takeover of a silent leader grows with each takeover that follows another. The takeover of a
// dead leader waits only for the holddown.
func TestTakeoversOfSilentLeadersWaitLonger(t *testing.T) {
	const holddown = 20 * time.Second // no test waits for it: the key is deleted
	s := etcdtest.Store(t)
	kv := s.Client()
	flapping := s.Prefix() + "/master/flapping"
	takeOver := func(silent bool) error {
		t.Helper()
		lock := lead(t, s, "a")
		defer lock.Resign(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		return s.TakeOver(t.Context(), <-s.WatchLeader(ctx), store.Takeover{Holddown: holddown, Silent: silent})
	}
	for before, want := range map[string]struct {
		count string
		lease time.Duration // the first half of the lease is the pause
	}{
		"":        {"1", 2 * holddown},
		"1":       {"2", 4 * holddown},
		"2":       {"3", 8 * holddown},
		"3":       {"4", 16 * holddown},
		"4":       {"5", 16 * holddown},
		"1000000": {"1000001", 16 * holddown},
		"edited":  {"2", 4 * holddown},
	} {
		if _, err := kv.Delete(t.Context(), s.Prefix()+"/master/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		if before != "" { // without a lease: its pause has expired
			if _, err := kv.Put(t.Context(), flapping, before); err != nil {
				t.Fatal(err)
			}
		}
		if err := takeOver(true); err != nil {
			t.Errorf("after %q: %v", before, err)
			continue
		}
		found, err := kv.Get(t.Context(), flapping)
		if err != nil || len(found.Kvs) != 1 {
			t.Fatalf("after %q: %v, %v", before, found, err)
		}
		lease, err := kv.TimeToLive(t.Context(), clientv3.LeaseID(found.Kvs[0].Lease))
		if err != nil {
			t.Fatal(err)
		}
		if count, granted := string(found.Kvs[0].Value), time.Duration(lease.GrantedTTL)*time.Second; count != want.count || granted != want.lease {
			t.Errorf("after %q: %s takeovers, on a lease of %v; expected %s, %v", before, count, granted, want.count, want.lease)
		}
		if err := takeOver(false); !errors.Is(err, store.ErrHeldDown) {
			t.Errorf("after %q: takeover of a dead leader during the holddown: got %v", before, err)
		}
		if _, err := kv.Delete(t.Context(), s.Prefix()+"/master/holddown"); err != nil { // as if it had expired
			t.Fatal(err)
		}
		if err := takeOver(true); !errors.Is(err, store.ErrHeldDown) {
			t.Errorf("after %q: takeover of a silent leader during the pause: got %v", before, err)
		}
		if err := takeOver(false); err != nil {
			t.Errorf("after %q: takeover of a dead leader during the pause: got %v", before, err)
		}
	}
}

// The queue for the lock names the leader by its lease. A second forced takeover within the holddown is refused.
func TestTakeoverWithinHolddownIsRefused(t *testing.T) {
	s := etcdtest.Store(t)
	takeOver := func() error {
		lease := make(chan string, 1)
		lock, err := s.Lead(t.Context(), store.Campaign{Address: "127.0.0.1:1", Queued: func(l string) { lease <- l }})
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Resign(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		leader := <-s.WatchLeader(ctx)
		if leader.Lease != <-lease || leader.Address != "127.0.0.1:1" || leader.Revision != lock.Revision() {
			t.Errorf("leader: got %+v", leader)
		}
		return s.TakeOver(t.Context(), leader, store.Takeover{Holddown: 5 * time.Second})
	}
	if err := takeOver(); err != nil {
		t.Errorf("first takeover: %v", err)
	}
	if err := takeOver(); !errors.Is(err, store.ErrHeldDown) {
		t.Errorf("second takeover: error %v, expected %v", err, store.ErrHeldDown)
	}
}
