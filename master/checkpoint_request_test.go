package master

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
