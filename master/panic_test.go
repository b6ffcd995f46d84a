package master

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/ledger"
	"trainmaster/master/component"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// panicking is a component that panics in its first terms.
type panicking struct {
	inPrepare bool
	terms     int64 // number of terms that panic
	after     time.Duration
	began     atomic.Int64 // terms so far
}

func (p *panicking) Name() string               { return "panicking part" }
func (p *panicking) Init(context.Context) error { return nil }

func (p *panicking) Prepare(context.Context, component.Term) error {
	if p.began.Add(1) <= p.terms && p.inPrepare {
		panic("planted in Prepare")
	}
	return nil
}

func (p *panicking) Run(ctx context.Context, t component.Term) error {
	if p.began.Load() <= p.terms {
		t.Clock().Sleep(ctx, p.after)
		panic("planted in Run")
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// A panic of a component ends the term with a logged stack. The same master leads the next term, with the stored state.
func TestPanicOfAComponentEndsTheTerm(t *testing.T) {
	for _, part := range []*panicking{{terms: 1, after: time.Second}, {terms: 1, inPrepare: true}} {
		bubble(t, func(t *testing.T) {
			m, log, stop, ended := startsLogged(t, newMemory(), Config{Components: []component.Component{part}})
			if !part.inPrepare {
				time.Sleep(part.after / 2) // virtual time
				if _, err := m.Join(t.Context(), "a", ""); err != nil {
					t.Errorf("join before the panic: %v", err)
				}
			}
			time.Sleep(part.after + 10*termPause)
			if !m.Leading() || part.began.Load() != 2 {
				t.Fatalf("expected leadership in term 2, found leading %v in term %d", m.Leading(), part.began.Load())
			}
			if session, err := m.Join(t.Context(), "b", ""); err != nil || !part.inPrepare && session.Ordinal != 2 {
				t.Errorf("join after the panic: expected ordinal 2, found %+v, %v", session, err)
			}
			if stack := stackOf(log); !strings.Contains(stack, "(*panicking)") {
				t.Errorf("logged stack: expected the component, found %q", stack)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// A component that panics in each term is started again after pauses that double up to [panicPauseMax]. A term that lasts resets them.
func TestPanicOfEachTermIsRetriedAfterLongerPauses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		part := &panicking{terms: 1 << 40}
		m, _, stop, ended := startsLogged(t, newMemory(), Config{Components: []component.Component{part}})
		time.Sleep(10 * time.Minute) // virtual time
		if n := part.began.Load(); n < 20 || n > 35 {
			t.Errorf("terms in 10 minutes: expected 20 to 35, found %d", n)
		}
		if reason, _ := m.notLeading.Load().(string); !strings.Contains(reason, "panicking part: internal error: panic: planted in Run") {
			t.Errorf("status: expected the panic, found %q", reason)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	bubble(t, func(t *testing.T) {
		part := &panicking{terms: 1 << 40, after: 2 * panicPauseMax}
		_, _, stop, ended := startsLogged(t, newMemory(), Config{Components: []component.Component{part}})
		time.Sleep(10*part.after + 20*termPause) // virtual time
		if n := part.began.Load(); n != 11 {
			t.Errorf("terms that lasted: expected 11, found %d", n)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// panickingCommit is a store whose next commit panics: before the write, or after it.
type panickingCommit struct {
	*memory
	before, after atomic.Bool
}

func (s *panickingCommit) Lead(context.Context, store.Campaign) (store.Leadership, error) {
	return s, nil
}

func (s *panickingCommit) Commit(ctx context.Context, expected int64, state []byte, writes []taskqueue.Write) (int64, error) {
	if s.before.CompareAndSwap(true, false) {
		panic("planted before a write")
	}
	revision, err := s.memory.Commit(ctx, expected, state, writes)
	if s.after.CompareAndSwap(true, false) {
		panic("planted after a write")
	}
	return revision, err
}

// A panic of the committer ends the term. The caller receives no result, and the next term continues with the state that is stored:
// a repeated request is counted once, whether the write happened or not.
func TestPanicOfTheCommitterEndsTheTerm(t *testing.T) {
	for _, wrote := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			store := &panickingCommit{memory: newMemory()}
			m, log, stop, ended := startsLogged(t, store, Config{})
			register(t, m, 2)
			w := joins(t, m, "a")
			if !w.next() {
				t.Fatal("expected a task")
			}
			finished := []taskqueue.Result{{Token: w.held}}
			request := taskqueue.Request{Trainer: w.Ordinal, Incarnation: w.Incarnation, Seq: w.seq + 1, Ack: w.seq, Finished: finished}
			store.before.Store(!wrote)
			store.after.Store(wrote)
			sent := request
			if _, err := m.Next(t.Context(), &sent); !errors.Is(err, ErrNotLeader) {
				t.Errorf("request of the batch that panicked: expected %v, found %v", ErrNotLeader, err)
			}
			time.Sleep(10 * termPause) // virtual time
			sent = request
			expected := taskqueue.Counted
			if wrote {
				expected = taskqueue.AlreadyCounted
			}
			if reply, err := m.Next(t.Context(), &sent); err != nil || reply.Finishes[0] != expected {
				t.Errorf("repeated request, write %v: expected %v, found %+v, %v", wrote, expected, reply, err)
			}
			if overview, err := m.Overview(t.Context()); err != nil || overview.Sets[0].Done != 1 {
				t.Errorf("tasks done: expected 1, found %+v, %v", overview, err)
			}
			if stack := stackOf(log); !strings.Contains(stack, "(*panickingCommit).Commit") {
				t.Errorf("logged stack: expected the commit, found %q", stack)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// panickingSealer is a sealer whose first call of Run panics.
type panickingSealer struct{ runs atomic.Int64 }

func (s *panickingSealer) Check(context.Context, string) error { return nil }
func (s *panickingSealer) Status() ledger.Status               { return ledger.Status{} }
func (s *panickingSealer) Run(ctx context.Context, _ ledger.Lock, _ string, _ func() ledger.Progress) error {
	if s.runs.Add(1) == 1 {
		panic("planted in the sealer")
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// A panic of the sealer ends the term, and the next term seals.
func TestPanicOfTheSealerEndsTheTerm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sealer := &panickingSealer{}
		m, _, stop, ended := startsLogged(t, newMemory(), Config{Ledger: sealer})
		time.Sleep(10 * termPause) // virtual time
		if n := sealer.runs.Load(); n != 2 || !m.Leading() {
			t.Errorf("runs of the sealer: expected 2 and leadership, found %d, %v", n, m.Leading())
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// startsLogged starts a master in a bubble, waits until it has begun, and returns its log. Cancel it and wait for ended.
func startsLogged(t *testing.T, store store.Store, config Config) (m *Master, log *logtest.Hook, stop func(), ended <-chan error) {
	t.Helper()
	logger, hook := logtest.NewNullLogger()
	config.Store, config.Log = store, logrus.NewEntry(logger)
	m, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	time.Sleep(20 * time.Millisecond) // virtual time: until it leads, if it can
	return m, hook, cancel, done
}

// stackOf returns the stack of the first logged panic.
func stackOf(log *logtest.Hook) string {
	for _, e := range log.AllEntries() {
		if e.Data["panic"] != nil && e.Level == logrus.ErrorLevel {
			stack, _ := e.Data["stack"].(string)
			return stack
		}
	}
	return ""
}
