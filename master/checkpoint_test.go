package master

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/master/pscontrol"
	"trainmaster/taskqueue"
)

const midStep = "in the middle of a step"

// cutting implements parameter servers that record their calls.
type cutting struct {
	pscontrol.None // the rest
	store          *memory

	mu      sync.Mutex
	events  []string
	number  uint64
	latest  []byte // of the last request for a cut
	failing string // name of the call that fails
	telling bool   // a CommitStep is under way
	abouts  map[uint64]pscontrol.About

	versions map[uint64]uint64 // versions by set
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

// taken returns the calls since the last call of taken.
func (s *cutting) taken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.Join(s.events, ", ")
	s.events = nil
	return text
}

func (s *cutting) CommitStep(ctx context.Context, _ taskqueue.Step) error {
	s.mu.Lock()
	s.telling = true
	s.mu.Unlock()
	pause(ctx, 100*time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.telling = false
	return nil
}

func (s *cutting) Begin(_ context.Context, of pscontrol.CutRequest) (pscontrol.Cut, error) {
	s.mu.Lock()
	s.number, s.latest = of.Number(s.number), of.Latest
	s.mu.Unlock()
	if err := s.note("begin"); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *cutting) Number() uint64 { return s.number }

func (s *cutting) Write(_ context.Context, about pscontrol.About) ([]byte, error) {
	s.mu.Lock()
	if s.abouts == nil {
		s.abouts = map[uint64]pscontrol.About{}
	}
	s.abouts[s.number] = about
	s.mu.Unlock()
	return fmt.Appendf(nil, "set %d", s.number), s.note("write")
}

func (s *cutting) SetAt(set []byte) (at pscontrol.SetAt, err error) {
	if _, err = fmt.Sscanf(string(set), "set %d", &at.Number); err != nil {
		return at, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at.JobID, at.Version, at.Position = s.abouts[at.Number].JobID, s.versions[at.Number], &pscontrol.Position{}
	return at, json.Unmarshal(s.abouts[at.Number].Position, at.Position)
}

func (s *cutting) Discard(_ context.Context, _ uint64, latest []byte) error {
	return s.note(fmt.Sprintf("discard beyond %q,", latest))
}

func (s *cutting) Abort(context.Context) error { return s.note("abort") }

func (s *cutting) Prune(ctx context.Context, keep int, spared []uint64) error {
	latest, _, err := s.store.Value(ctx, pscontrol.LatestSetKey)
	text := fmt.Sprintf("%s latest, keep %d,", latest, keep)
	if len(spared) > 0 {
		text = fmt.Sprintf("%s latest, keep %d and %v,", latest, keep, spared)
	}
	return errors.Join(err, s.note(text))
}

// A set is named in the store before an older set is removed. After any failure the earlier set remains, and the
// status has the failure until a checkpoint succeeds.
func TestCheckpoints(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &cutting{store: store}
		m, stop, _ := leads(t, store, Config{}, s, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: time.Minute}, CheckpointKeep: 3})
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
		time.Sleep(time.Second + 100*time.Millisecond) // all later times differ from the times of the leader
		want("the first, immediately", `discard beyond "", 0, begin 1, write 1, set 1 latest, keep 3, 1`, 1, "")
		time.Sleep(58 * time.Second)
		want("too early", "", 1, "")
		time.Sleep(2 * time.Second)
		want("the next", "begin 2, write 2, set 2 latest, keep 3, 2", 2, "")
		if s.abouts[1].After != 0 || s.abouts[2].After != 1 {
			t.Errorf("set 1 is after %d, set 2 after %d; expected 0 and 1", s.abouts[1].After, s.abouts[2].After)
		}
		s.fail("write")
		time.Sleep(time.Minute)
		if got := s.taken(); !strings.HasPrefix(got, `begin 3, write 3, abort 3, discard beyond "set 2", 3`) || strings.Contains(got, "latest") {
			t.Errorf("server with a full disk: %s", got)
		}
		want("server with a full disk", "", 2, "disk full")
		if latest, _, _ := store.Value(t.Context(), pscontrol.LatestSetKey); string(latest) != "set 2" {
			t.Errorf("latest set: found %s, expected set 2", latest)
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
			t.Errorf("after the failure: %s", got)
		}
		want("after the failure", "", s.Number(), "")
	})
}

// A cut of a synchronous job begins between two steps.
func TestCheckpointsBetweenSteps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		store.keys[taskqueue.StepKey] = taskqueue.Step{Version: 3, Epoch: 1}.Encode() // resent every 5 s
		s := &cutting{store: store}
		servers := &retiringTogether{cutTogether: cutTogether{s}}
		_, stop, ended := leads(t, store, synchronous(Config{}), servers, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: 300 * time.Millisecond}})
		defer func() {
			stop()
			<-ended // a step may be under way
		}()
		time.Sleep(time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.events) < 100 {
			t.Errorf("expected more events, found %d", len(s.events))
		}
		for i, e := range s.events {
			if e == midStep && strings.HasPrefix(s.events[i-1], "begin") {
				t.Fatalf("%q during a step", s.events[i-1])
			}
		}
	})
}

// A leader continues the cadence from the latest set of the previous leader.
func TestCadenceOverLeaders(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &cutting{store: store}
		lead := func(lasts time.Duration) (events string) {
			m, stop, ended := leads(t, store, Config{}, s, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: time.Minute}})
			for began := time.Now(); time.Since(began) < lasts; time.Sleep(time.Second) {
				if _, err := m.Join(t.Context(), "a", ""); err != nil { // the job clock advances while a trainer has a session
					t.Fatal(err)
				}
			}
			stop()
			<-ended
			store = store.copied()
			s.store = store
			return s.taken()
		}
		if got := lead(2 * time.Second); !strings.Contains(got, "begin 1") {
			t.Fatalf("first checkpoint: expected it immediately, got %s", got)
		}
		if got := lead(40 * time.Second); got != "" {
			t.Errorf("less than a minute after the first: %s", got)
		}
		if got := lead(25 * time.Second); !strings.Contains(got, "begin 2") || strings.Contains(got, "begin 3") {
			t.Errorf("more than a minute after the checkpoint of an earlier leader: expected the next, got %s", got)
		}
	})
}

// A set has parts of the set before it in place of missing servers, but not of another job.
func TestPartsInPlaceOfMissingServers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &cutting{store: store, number: 4, abouts: map[uint64]pscontrol.About{4: {JobID: "ff", Position: []byte("{}")}}}
		store.keys[pscontrol.LatestSetKey] = []byte("set 4")
		m, stop, ended := leads(t, store, Config{}, s, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: time.Minute}})
		defer func() {
			stop()
			<-ended
		}()
		for after, want := range []string{"", "set 5"} {
			for s.taken() == "" {
				time.Sleep(time.Second)
				if _, err := m.Join(t.Context(), "a", ""); err != nil { // the job clock advances while a trainer has a session
					t.Fatal(err)
				}
			}
			s.mu.Lock()
			if string(s.latest) != want {
				t.Errorf("set %d: expected the parts of %q, found of %q", 5+after, want, s.latest)
			}
			s.mu.Unlock()
		}
	})
}

// Passes are counted from the latest set, also by the next leader.
func TestPassesSinceTheLatestSet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &cutting{store: store, number: 4, abouts: map[uint64]pscontrol.About{4: {Position: []byte(`{"datasets": [{"pass": 0}]}`)}}}
		store.keys[pscontrol.LatestSetKey] = []byte("set 4")
		m, stop, ended := leads(t, store, Config{Queue: taskqueue.Options{Passes: 3}}, s, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Passes: 2}})
		defer func() {
			stop()
			<-ended
		}()
		register(t, m, 1)
		time.Sleep(time.Second)
		if got := s.taken(); got != "" {
			t.Errorf("in the first pass: %s", got)
		}
	})
}

// absent implements the parameter servers of a job in which one server is missing.
type absent struct {
	*cutting
	missing atomic.Bool
}

func (s *absent) Begin(ctx context.Context, of pscontrol.CutRequest) (pscontrol.Cut, error) {
	if s.missing.Load() {
		return nil, fmt.Errorf("parameter server with index 1 %w", pscontrol.ErrServerMissing)
	}
	return s.cutting.Begin(ctx, of)
}

// Before the first set the leader waits for a missing server. Later a missing server is an error.
func TestFirstCheckpointWaitsForServers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &absent{cutting: &cutting{store: store}}
		s.missing.Store(true)
		logger, hook := logtest.NewNullLogger()
		m, err := New(controlled(Config{Store: store, Log: logrus.NewEntry(logger)}, s, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: time.Minute}}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = m.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		levels := func(d time.Duration) (list []string) {
			hook.Reset()
			for began := time.Now(); time.Since(began) < d; time.Sleep(time.Second) {
				_, _ = m.Join(ctx, "a", "") // the job clock advances while a trainer has a session
			}
			for _, e := range hook.AllEntries() {
				if strings.Contains(e.Message, "checkpoint") {
					list = append(list, e.Level.String()+" "+e.Message)
				}
			}
			return list
		}
		if found := levels(time.Minute); !slices.Equal(found, []string{"info waiting for parameter servers before the first checkpoint"}) {
			t.Errorf("with a missing server: %q", found)
		}
		s.missing.Store(false)
		if found := levels(10 * time.Second); !slices.Contains(found, "info checkpoint complete") {
			t.Errorf("with all servers: %q", found)
		}
		s.missing.Store(true)
		if found := levels(2 * time.Minute); len(found) == 0 || !strings.HasPrefix(found[0], "error checkpoint not complete") {
			t.Errorf("after the loss of a server: %q", found)
		}
	})
}
