package etcdstore_test

import (
	"errors"
	"testing"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
)

const latestKey = "/checkpoints/latest"

// An operator's write counts only while the leader and the named set are what the operator saw.
func TestMovePointerComparesLeaderAndSet(t *testing.T) {
	put := func(t *testing.T, s *etcdstore.Store, value string) {
		t.Helper()
		if _, err := s.Client().Put(t.Context(), s.Prefix()+latestKey, value); err != nil {
			t.Fatal(err)
		}
	}
	lead := func(t *testing.T, s *etcdstore.Store) *etcdstore.Lock {
		t.Helper()
		lock, err := s.Campaign(t.Context(), etcdstore.CampaignConfig{Address: "a:1", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return lock
	}
	for name, meanwhile := range map[string]func(t *testing.T, s *etcdstore.Store){
		"nothing":              func(*testing.T, *etcdstore.Store) {},
		"another set is named": func(t *testing.T, s *etcdstore.Store) { put(t, s, "set 3") },
		"a master leads":       func(t *testing.T, s *etcdstore.Store) { lead(t, s) },
	} {
		t.Run(name, func(t *testing.T) {
			s := etcdtest.Open(t, etcdtest.Endpoint(t), etcdtest.NewJob(t))
			put(t, s, "set 2")
			from, err := s.ReadPointer(t.Context())
			if err != nil || string(from.Set) != "set 2" {
				t.Fatalf("%q, %v", from.Set, err)
			}
			meanwhile(t, s)
			err = s.MovePointer(t.Context(), from, []byte("set 1"))
			if moved := errors.Is(err, etcdstore.ErrPointerMoved); moved != (name != "nothing") || !moved && err != nil {
				t.Errorf("named another set: %v", err)
			}
		})
	}
	t.Run("the leader leaves", func(t *testing.T) {
		s := etcdtest.Open(t, etcdtest.Endpoint(t), etcdtest.NewJob(t))
		lock := lead(t, s)
		from, err := s.ReadPointer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.MovePointer(t.Context(), from, []byte("set 1")); err != nil {
			t.Errorf("under the same leader: %v", err)
		}
		if from, err = s.ReadPointer(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := lock.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.MovePointer(t.Context(), from, []byte("set 2")); !errors.Is(err, etcdstore.ErrPointerMoved) {
			t.Errorf("after the leader left: %v", err)
		}
	})
}
