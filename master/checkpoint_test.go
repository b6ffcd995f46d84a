package master

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

const midStep = "in the middle of a step"

// cutting is parameter servers that only note what is asked of them.
type cutting struct {
	store *memory

	mu      sync.Mutex
	events  []string
	number  uint64
	failing string // what fails
	telling bool   // a step is being told
}

func (s *cutting) note(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf("%s %d", what, s.number))
	if s.telling {
		s.events = append(s.events, midStep)
	}
	if what == s.failing {
		return errors.New("disk full")
	}
	return nil
}

func (s *cutting) fail(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = what
}

// taken returns what happened since it was last asked.
func (s *cutting) taken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.Join(s.events, ", ")
	s.events = nil
	return text
}

func (s *cutting) CommitStep(ctx context.Context, _ Step) error {
	s.mu.Lock()
	s.telling = true
	s.mu.Unlock()
	pause(ctx, 100*time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.telling = false
	return nil
}

func (s *cutting) Begin(_ context.Context, _ uint64, _ uint32, number func(uint64) uint64) (Cut, error) {
	s.mu.Lock()
	s.number = number(s.number)
	s.mu.Unlock()
	if err := s.note("begin"); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *cutting) Number() uint64 { return s.number }

func (s *cutting) Write(context.Context, string, []byte) ([]byte, error) {
	return fmt.Appendf(nil, "set %d", s.number), s.note("write")
}

func (s *cutting) Abort(context.Context) error { return s.note("abort") }

func (s *cutting) Prune(ctx context.Context, keep int) error {
	latest, err := s.store.Value(ctx, LatestSetKey)
	return errors.Join(err, s.note(fmt.Sprintf("%s latest, keep %d,", latest, keep)))
}

// A set is named in the store before anything older is removed; whatever fails, the one
// before it stays, and that is said until one succeeds.
func TestCheckpoints(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &cutting{store: store}
		m, stop, _ := leads(t, store, Config{CheckpointEvery: Cadence{Time: time.Minute}, CheckpointKeep: 3}, s)
		defer stop()
		want := func(what, events string, set uint64, failure string) {
			t.Helper()
			if got := s.taken(); got != events {
				t.Errorf("%s: %s; expected %s", what, got, events)
			}
			status, err := m.Status(t.Context())
			if err != nil || status.Checkpoint.Set != set || (failure == "") != (status.Checkpoint.Failure == "") || !strings.Contains(status.Checkpoint.Failure, failure) {
				t.Errorf("%s: status %+v, %v; expected set %d and failure %q", what, status.Checkpoint, err, set, failure)
			}
		}
		time.Sleep(59*time.Second + 100*time.Millisecond) // from here on never at a moment at which the leader does something
		want("too early", "", 0, "")
		time.Sleep(2 * time.Second)
		want("the first", "begin 1, write 1, set 1 latest, keep 3, 1", 1, "")
		s.fail("write")
		time.Sleep(time.Minute)
		if got := s.taken(); !strings.HasPrefix(got, "begin 2, write 2, abort 2") || strings.Contains(got, "latest") {
			t.Errorf("a server whose disk is full: %s", got)
		}
		want("a server whose disk is full", "", 1, "disk full")
		if latest, _ := store.Value(t.Context(), LatestSetKey); string(latest) != "set 1" {
			t.Errorf("%s is named, expected set 1", latest)
		}
		s.fail("")
		store.set(time.Millisecond, errors.New("etcd is full"))
		time.Sleep(2 * checkpointPause)
		if got := s.taken(); !strings.Contains(got, "abort") || strings.Contains(got, "latest") {
			t.Errorf("etcd is full: %s", got)
		}
		store.set(time.Millisecond, nil)
		time.Sleep(2 * checkpointPause)
		if got := s.taken(); !strings.Contains(got, fmt.Sprintf("set %d latest", s.Number())) {
			t.Errorf("all is well again: %s", got)
		}
		want("all is well again", "", s.Number(), "")
	})
}

// In synchronous mode the moments are fixed between two steps.
func TestCheckpointsBetweenSteps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		store.keys[StepKey] = Step{Version: 3, Epoch: 1}.encode() // told again every 500 ms
		s := &cutting{store: store}
		_, stop, ended := leads(t, store, Config{Sync: true, CheckpointEvery: Cadence{Time: 300 * time.Millisecond}}, s)
		defer func() {
			stop()
			<-ended // it may be in the middle of a step
		}()
		time.Sleep(time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.events) < 100 {
			t.Errorf("only %d events", len(s.events))
		}
		for i, e := range s.events {
			if e == midStep && strings.HasPrefix(s.events[i-1], "begin") {
				t.Fatalf("%q in the middle of a step", s.events[i-1])
			}
		}
	})
}

// Attempts that leave something on the disk follow each other ever later; those that leave nothing, and the first after a
// success, soon.
func TestPaceOfFailedCheckpoints(t *testing.T) {
	now := time.Unix(0, 0)
	var p pace
	if p.tooSoon(now) {
		t.Error("the first attempt waits")
	}
	full := errors.New("disk full")
	for i, want := range []struct {
		err   error
		pause time.Duration
	}{
		{full, time.Second}, {full, 2 * time.Second}, {full, 4 * time.Second}, {ErrNothingToCut, time.Second}, {full, 2 * time.Second},
		{fmt.Errorf("cut 3: %w", errNotFlushed), time.Second},
	} {
		p.failed(now, want.err)
		if !p.tooSoon(now.Add(want.pause-1)) || p.tooSoon(now.Add(want.pause)) {
			t.Errorf("after failure %d the pause is %v, expected %v", i+1, p.pause, want.pause)
		}
	}
	for range 20 {
		p.failed(now, full)
	}
	if p.pause != checkpointPause {
		t.Errorf("the longest pause is %v, expected %v", p.pause, checkpointPause)
	}
}
