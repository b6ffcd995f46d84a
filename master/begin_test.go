package master

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"trainmaster/master/component"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// hanging is a store whose reads of one key get no answer while hangs is set. Its lock can be lost once in each term.
type hanging struct {
	*memory
	key   string
	hangs atomic.Bool
	held  atomic.Pointer[chan struct{}] // closed: the lock is lost
	terms atomic.Int64
}

func (s *hanging) Lead(context.Context, store.Campaign) (store.Leadership, error) {
	s.terms.Add(1)
	held := make(chan struct{})
	s.held.Store(&held)
	return s, nil
}

func (s *hanging) Lost() <-chan struct{} { return *s.held.Load() }

func (s *hanging) Value(ctx context.Context, key string) ([]byte, int64, error) {
	if key == s.key && s.hangs.Load() {
		<-ctx.Done()
		return nil, 0, ctx.Err()
	}
	return s.memory.Value(ctx, key)
}

// readingPart is a component whose Prepare reads a key.
type readingPart struct{ store *hanging }

func (readingPart) Name() string               { return "reading part" }
func (readingPart) Init(context.Context) error { return nil }
func (r readingPart) Prepare(ctx context.Context, _ component.Term) error {
	_, _, err := r.store.Value(ctx, "/read")
	return err
}

func (readingPart) Run(ctx context.Context, _ component.Term) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func newHanging(key string) (*hanging, Config) {
	s := &hanging{memory: newMemory(), key: key}
	s.hangs.Store(true)
	return s, Config{Components: []component.Component{readingPart{s}}}
}

// The lock is lost while a component, or the recovery of the state, waits for an answer of the store. The term ends immediately, and the master
// campaigns again.
func TestLockIsLostWhileATermBegins(t *testing.T) {
	for _, key := range []string{"/read", taskqueue.RestoringKey} {
		bubble(t, func(t *testing.T) {
			s, config := newHanging(key)
			m, _, stop, ended := startsLogged(t, s, config)
			time.Sleep(time.Second) // virtual time
			s.hangs.Store(false)    // for later reads; the first read gets no answer
			close(*s.held.Load())
			time.Sleep(2 * termPause)
			if terms := s.terms.Load(); terms != 2 || !m.Leading() {
				t.Errorf("read of %s: expected leadership in term 2, found %v in term %d", key, m.Leading(), terms)
			}
			if reason, _ := m.notLeading.Load().(string); !strings.Contains(reason, "the lock is lost") {
				t.Errorf("read of %s: expected the reason of the first term, found %q", key, reason)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// The store answers keep-alives of the lease, but not the read of a component. The term ends after the time to live of the lease, and the
// next term begins when the store answers.
func TestPrepareWithoutAnAnswerEndsTheTerm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, config := newHanging("/read")
		m, _, stop, ended := startsLogged(t, s, config)
		time.Sleep(s.TTL() + termPause/2) // virtual time
		if reason, _ := m.notLeading.Load().(string); !strings.Contains(reason, "prepare reading part: ") || !strings.Contains(reason, "no answer within 5s") {
			t.Errorf("reason: expected the component and its limit, found %q", reason)
		}
		time.Sleep(10 * s.TTL())
		if terms := s.terms.Load(); terms < 10 || terms > 12 {
			t.Errorf("terms in 11 times %v: expected 10 to 12, found %d", s.TTL(), terms)
		}
		s.hangs.Store(false)
		time.Sleep(s.TTL() + 2*termPause)
		if !m.Leading() {
			t.Error("expected leadership after the store answers")
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A master that stops does not wait for the read of a component.
func TestStoppedMasterGivesUpPrepare(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, config := newHanging("/read")
		_, _, stop, ended := startsLogged(t, s, config)
		stop()
		within(t, "end of a stopped master", time.Second, ended)
	})
}

// A component refuses the settings of this master when its term begins: the master ends with that error, and resigns.
func TestSettingsRefusedByAComponentEndTheMaster(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, config := newHanging("")
		config.Components = []component.Component{refusing{}}
		_, _, _, ended := startsLogged(t, s, config)
		if err := within(t, "end of the master", time.Second, ended); !errors.Is(err, ErrOtherJob) || s.terms.Load() != 1 {
			t.Errorf("expected %v in term 1, found %v in term %d", ErrOtherJob, err, s.terms.Load())
		}
	})
}

// refusing is a component that refuses the settings of its master.
type refusing struct{ readingPart }

func (refusing) Prepare(context.Context, component.Term) error { return ErrOtherJob }
