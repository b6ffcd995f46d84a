package master

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/master/component"
	"trainmaster/master/pscontrol"
)

// wanting is a parameter server that can want a set.
type wanting struct {
	cutting
	wants atomic.Bool
}

func (s *wanting) States(context.Context) ([]pscontrol.ServerState, error) {
	return []pscontrol.ServerState{{Present: true, Ready: true, KeepsCheckpoints: true, WantsSet: s.wants.Load()}}, nil
}

// Without a cadence a leader takes a set when servers have parameters, when one asks for it, and when the leader stops.
func TestSetsWithoutCadence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &wanting{cutting: cutting{store: store}}
		m, stop, ended := leads(t, store, Config{}, s, pscontrol.Config{})
		want := func(what, events string) {
			t.Helper()
			time.Sleep(time.Minute)
			if got := s.taken(); (events == "") != (got == "") || !strings.Contains(got, events) {
				t.Errorf("%s: found %q, expected %q", what, got, events)
			}
		}
		want("first parameters", "begin 1, write 1, set 1 latest")
		m.current.Load().Post(component.ServersChanged{})
		want("no server asks", "")
		s.wants.Store(true)
		m.current.Load().Post(component.ServersChanged{})
		want("a server asks", "begin 2, write 2, set 2 latest")
		s.wants.Store(false)
		stop()
		<-ended
		if got := s.taken(); !strings.HasPrefix(got, "begin 3, write 3, set 3 latest") {
			t.Errorf("the leader stops: found %q, expected a set", got)
		}
	})
}

// While sets fail, requests of servers do not end the pauses between attempts, but shorten them to 5 s.
func TestFailedSetsHavePausesWhileServersAsk(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &wanting{cutting: cutting{store: store, failing: "write"}}
		s.wants.Store(true)
		log, entries := logtest.NewNullLogger()
		m, stop, ended := leads(t, store, Config{Log: logrus.NewEntry(log)}, s, pscontrol.Config{})
		attempts := func(d time.Duration) int {
			for began := time.Now(); time.Since(began) < d; time.Sleep(100 * time.Millisecond) {
				m.current.Load().Post(component.ServersChanged{})
			}
			return strings.Count(s.taken(), "begin")
		}
		if n := attempts(time.Minute); n < 10 || n > 16 {
			t.Errorf("expected 10 to 16 attempts in a minute, found %d", n)
		}
		time.Sleep(time.Hour) // the pauses grow to a minute
		s.taken()
		if n := attempts(6 * time.Second); n < 1 || n > 3 {
			t.Errorf("expected 1 to 3 attempts in the first 6 s of requests, found %d", n)
		}
		stop()
		<-ended
		if last := entries.LastEntry(); last == nil || !strings.HasPrefix(last.Message, "no last checkpoint set") {
			t.Errorf("the leader stopped without a last set: expected a warning, found %v", last)
		}
	})
}
