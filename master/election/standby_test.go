package election

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/master/election/detector"
	"trainmaster/master/store"
)

// suspected is a store of a job with a leader that never commits. It reports each attempted takeover and permits
// none.
type suspected struct {
	store.Store // nil, except for the methods below
	leader      store.Candidate
	takeover    chan store.Takeover
}

func (s suspected) WatchLeader(ctx context.Context) <-chan store.Candidate {
	leader := make(chan store.Candidate, 1)
	leader <- s.leader
	context.AfterFunc(ctx, func() { close(leader) })
	return leader
}

func (s suspected) WatchState(ctx context.Context) <-chan store.Version {
	none := make(chan store.Version)
	context.AfterFunc(ctx, func() { close(none) })
	return none
}

func (s suspected) Value(context.Context, string) ([]byte, int64, error) { return nil, 0, nil }

func (s suspected) TakeOver(ctx context.Context, _ store.Candidate, by store.Takeover) error {
	select {
	case s.takeover <- by:
	case <-ctx.Done():
	}
	return store.ErrHeldDown
}

// A leader with an open port that sends no heartbeats is silent. When its process ends, it is dead, and stays dead
// while a holddown delays the takeover.
func TestSilentAndDeadLeaders(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.Map
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Store(conn, nil)
		}
	})
	die := sync.OnceFunc(func() {
		listener.Close()
		serving.Wait()
		conns.Range(func(conn, _ any) bool { return conn.(net.Conn).Close() == nil })
	})
	defer die()
	db := suspected{nil, store.Candidate{Key: "/master/lock/1", Revision: 1, Address: listener.Addr().String(), Lease: "1"}, make(chan store.Takeover)}
	logger, _ := logtest.NewNullLogger()
	s := &standby{leads: func(string) {}, config: Config{Store: db, Log: logrus.NewEntry(logger), Holddown: time.Minute}, own: func() string { return "2" }}
	ctx, cancel := context.WithCancel(t.Context())
	var standing sync.WaitGroup
	standing.Go(func() { _ = s.run(ctx) })
	defer standing.Wait()
	defer cancel()

	next := func() store.Takeover {
		t.Helper()
		select {
		case by := <-db.takeover:
			return by
		case <-time.After(time.Minute):
			t.Fatal("expected a takeover")
		}
		return store.Takeover{}
	}
	if by := next(); !by.Silent || by.Holddown != time.Minute {
		t.Errorf("silent leader: got takeover %+v", by)
	}
	die()
	for next().Silent { // takeovers of the silent leader
	}
	for range 5 * int(time.Second/detector.Interval) / 5 {
		if by := next(); by.Silent {
			t.Fatalf("dead leader: got takeover %+v", by)
		}
	}
}

// A standby whose connections are accepted and refused, as by a port with too many connections, reconnects with
// pauses.
func TestStandbyRedialsWithPauses(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := atomic.Int64{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			conn.Close()
		}
	})
	defer serving.Wait()
	defer listener.Close()
	db := suspected{nil, store.Candidate{Key: "/master/lock/1", Revision: 1, Address: listener.Addr().String(), Lease: "1"}, make(chan store.Takeover)}
	logger, _ := logtest.NewNullLogger()
	s := &standby{leads: func(string) {}, config: Config{Store: db, Log: logrus.NewEntry(logger), Holddown: time.Minute}, own: func() string { return "2" }}
	ctx, cancel := context.WithCancel(t.Context())
	var standing sync.WaitGroup
	standing.Go(func() { _ = s.run(ctx) })
	defer standing.Wait()
	defer cancel()
	began := time.Now()
	for range 3 { // each after three missed heartbeats
		<-db.takeover
	}
	most := 10 + int64(time.Since(began)/detector.Interval)
	if n := accepted.Load(); n > most {
		t.Errorf("%d connections in %v, expected at most %d", n, time.Since(began), most)
	}
}

// A lock key with the address of this process belongs to an earlier start, which is dead, unless the key is its own.
func TestPredecessor(t *testing.T) {
	const here, there = "10.0.0.1:8080", "10.0.0.2:8080"
	for name, tt := range map[string]struct {
		own     string
		suspect store.Candidate
		want    detector.Verdict
	}{
		"an earlier start":            {"2", store.Candidate{Key: "/master/lock/1", Address: here, Lease: "1"}, detector.Dead},
		"own key":                     {"2", store.Candidate{Key: "/master/lock/2", Address: here, Lease: "2"}, detector.Alive},
		"before the own key is known": {"", store.Candidate{Key: "/master/lock/2", Address: here, Lease: "2"}, detector.Alive},
		"a master at another address": {"2", store.Candidate{Key: "/master/lock/1", Address: there, Lease: "1"}, detector.Alive},
		"an empty queue":              {"2", store.Candidate{}, detector.Alive},
	} {
		watch := detector.Watch{Address: here}
		for n := range 2 { // immediately, and at the next check
			got := watch.Follow(tt.suspect, tt.own)
			if n > 0 {
				got = watch.Look(1, tt.own)
			}
			if got != tt.want {
				t.Errorf("%s: %v, want %v", name, got, tt.want)
			}
		}
	}
}
