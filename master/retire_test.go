package master

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"trainmaster/taskqueue"
)

// forgetting implements parameter servers that record the ended sessions.
type forgetting struct {
	cutting
	mu     sync.Mutex
	job    [16]byte
	floor  uint64
	spared []uint64
}

func (s *forgetting) Retire(_ context.Context, _ uint64, job [16]byte, floor uint64, spared []uint64, _ *uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.job, s.floor, s.spared = job, floor, spared
	return nil
}

// over reports whether the servers received the end of an incarnation.
func (s *forgetting) over(incarnation uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return incarnation < s.floor && !slices.Contains(s.spared, incarnation)
}

// The servers receive the end of each session. They receive no end of a session that continues or begins later.
func TestServersReceiveEndedSessions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &forgetting{cutting: cutting{store: store}}
		m, stop, _ := leads(t, store, Config{Queue: taskqueue.Options{SessionTTL: 20 * time.Second}}, s)
		defer stop()
		register(t, m, 4)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stays, leaves, silent := joins(t, m, "stays"), joins(t, m, "leaves"), joins(t, m, "silent")
		stays.sendHeartbeats(ctx, false)
		if err := m.Leave(ctx, leaves.Ordinal, leaves.Incarnation); err != nil {
			t.Fatal(err)
		}
		want := func(when string, over ...bool) {
			t.Helper()
			for i, one := range []*worker{stays, leaves, silent} {
				if got := s.over(one.Incarnation); got != over[i] {
					t.Errorf("%s: end of trainer %d: found %v, expected %v", when, i, got, over[i])
				}
			}
		}
		time.Sleep(resendEvery + time.Second)
		want("one left", false, true, false)
		time.Sleep(time.Minute)
		want("one is silent", false, true, true)
		again := joins(t, m, "leaves")
		time.Sleep(resendEvery + time.Second)
		if want("one returned", false, true, true); s.over(again.Incarnation) {
			t.Error("expected the returned trainer to have a session")
		}
	})
}

// The servers receive the end of a session with its commit, and the ends of earlier terms when a term begins.
func TestServersReceiveTheEndOfASessionAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &forgetting{cutting: cutting{store: store}}
		m, stop, _ := leads(t, store, Config{}, s)
		a, b := joins(t, m, "a"), joins(t, m, "b")
		if err := m.Leave(t.Context(), a.Ordinal, a.Incarnation); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // virtual time, far less than resendEvery
		if !s.over(a.Incarnation) || s.over(b.Incarnation) {
			t.Errorf("sessions over: a %v, b %v; expected a alone", s.over(a.Incarnation), s.over(b.Incarnation))
		}
		stop()
		store = store.copied()
		s.store, s.floor, s.spared = store, 0, nil
		_, stop, _ = leads(t, store, Config{}, s)
		defer stop()
		time.Sleep(100 * time.Millisecond)
		if !s.over(a.Incarnation) || s.over(b.Incarnation) {
			t.Errorf("in the next term: sessions over: a %v, b %v; expected a alone", s.over(a.Incarnation), s.over(b.Incarnation))
		}
	})
}
