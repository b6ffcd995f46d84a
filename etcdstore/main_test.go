package etcdstore_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// patience limits waits for conditions. The machine may be busy.
const patience = 2 * time.Minute

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond) // interval between checks of the condition
	}
}

func receive[V any](t *testing.T, what string, from <-chan V) V {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
		panic("unreachable")
	}
}

func open(t *testing.T, isClosed <-chan struct{}) bool {
	t.Helper()
	select {
	case <-isClosed:
		return false
	default:
		return true
	}
}

// lead makes s the leader for the rest of the test.
func lead(t *testing.T, s *etcdstore.Store, address string) *etcdstore.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lock, err := s.Campaign(ctx, etcdstore.CampaignConfig{Address: address, TTL: time.Minute}) // TTL for a busy machine
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func commit(t *testing.T, lock *etcdstore.Lock, expect int64, state string) int64 {
	t.Helper()
	mod, err := lock.Commit(t.Context(), expect, []byte(state), nil)
	if err != nil {
		t.Fatal(err)
	}
	return mod
}

func wantState(t *testing.T, s *etcdstore.Store, want string, wantMod int64) {
	t.Helper()
	value, mod, err := s.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if string(value) != want || mod != wantMod {
		t.Fatalf("state is %q at revision %d, want %q at %d", value, mod, want, wantMod)
	}
}

// Shorter names of etcd options.
var (
	prefixed = clientv3.WithPrefix()
	physical = clientv3.WithCompactPhysical()
)

type alarmMember = clientv3.AlarmMember
