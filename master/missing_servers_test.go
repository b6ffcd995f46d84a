package master

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/master/pscontrol"
)

// lostServer is the only parameter server of a job. It keeps no checkpoints.
type lostServer struct {
	pscontrol.None
	registered atomic.Bool
}

func (s *lostServer) Addresses(context.Context) ([]string, error) {
	if s.registered.Load() {
		return []string{"10.0.0.1:1"}, nil
	}
	return nil, nil
}

// The only parameter server of an asynchronous job without checkpoints is lost together with the leader. The next leader has never seen
// the server. It names the missing server and the command, in the log and the status.
func TestMissingServersAreLoggedByLeaderThatNeverSawThem(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store, s := newMemory(), &lostServer{}
		store.keys["/ps_desired"] = []byte("1")
		logger, hook := logtest.NewNullLogger()
		m, err := New(controlled(Config{Store: store, Log: logrus.NewEntry(logger)}, s))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = m.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		logged := func(d time.Duration) (list []string) {
			hook.Reset()
			time.Sleep(d) // virtual time
			for _, e := range hook.AllEntries() {
				if e.Data["missing"] != nil || e.Message == "all parameter servers registered" {
					list = append(list, fmt.Sprint(e.Level, " ", e.Message, " ", e.Data))
				}
			}
			return list
		}
		want := "[warning parameter servers missing: training waits for them map[missing:[0] start:master pserver --endpoints ...]]"
		if found := fmt.Sprint(logged(time.Minute)); found != want {
			t.Errorf("log without the server: expected %s, found %s", want, found)
		}
		if status, err := m.Servers(ctx); err != nil || fmt.Sprint(status.Missing) != "[0]" {
			t.Errorf("status without the server: expected index 0 missing, found %+v, %v", status, err)
		}
		s.registered.Store(true)
		if found := fmt.Sprint(logged(time.Minute)); found != "[info all parameter servers registered map[]]" {
			t.Errorf("log with the server: found %s", found)
		}
	})
}
