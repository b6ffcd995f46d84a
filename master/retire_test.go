package master

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"trainmaster/taskqueue"
)

// forgetting is parameter servers that note who is over.
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

// over says whether an incarnation is, as the servers were told last.
func (s *forgetting) over(incarnation uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return incarnation < s.floor && !slices.Contains(s.spared, incarnation)
}

// The servers hear of each trainer whose session is over, and of no other one, also of one that comes later.
func TestServersHearWhoIsGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &forgetting{}
		m, stop, _ := leads(t, newMemory(), Config{Queue: taskqueue.Options{SessionTTL: 20 * time.Second}}, s)
		defer stop()
		register(t, m, 4)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stays, leaves, silent := joins(t, m, "stays"), joins(t, m, "leaves"), joins(t, m, "silent")
		stays.beats(ctx, false)
		if err := m.Leave(ctx, leaves.Ordinal, leaves.Incarnation); err != nil {
			t.Fatal(err)
		}
		want := func(when string, over ...bool) {
			t.Helper()
			for i, one := range []*worker{stays, leaves, silent} {
				if got := s.over(one.Incarnation); got != over[i] {
					t.Errorf("%s: trainer %d is over: %v, expected %v", when, i, got, over[i])
				}
			}
		}
		time.Sleep(retireEvery + time.Second)
		want("one left", false, true, false)
		time.Sleep(time.Minute)
		want("one is silent", false, true, true)
		again := joins(t, m, "leaves")
		time.Sleep(retireEvery + time.Second)
		if want("one came back", false, true, true); s.over(again.Incarnation) {
			t.Error("the one that came back is over")
		}
	})
}

// The servers receive the end of a session with its commit, and those of a former term when a term begins.
func TestServersReceiveTheEndOfASessionAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, store := &forgetting{}, newMemory()
		m, stop, _ := leads(t, store, Config{}, s)
		a, b := joins(t, m, "a"), joins(t, m, "b")
		if err := m.Leave(t.Context(), a.Ordinal, a.Incarnation); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // of virtual time, far less than retireEvery
		if !s.over(a.Incarnation) || s.over(b.Incarnation) {
			t.Errorf("sessions over: a %v, b %v; expected a alone", s.over(a.Incarnation), s.over(b.Incarnation))
		}
		stop()
		s = &forgetting{}
		_, stop, _ = leads(t, store.copied(), Config{}, s)
		defer stop()
		time.Sleep(100 * time.Millisecond)
		if !s.over(a.Incarnation) || s.over(b.Incarnation) {
			t.Errorf("in the next term: sessions over: a %v, b %v; expected a alone", s.over(a.Incarnation), s.over(b.Incarnation))
		}
	})
}
