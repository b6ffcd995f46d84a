package master

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/master/decide"
	"trainmaster/master/store"
)

// suspected is a store of a job that somebody leads, who never commits; it tells how that one is to be deposed, and lets nobody.
type suspected struct {
	*memory
	leader   store.Candidate
	takeover chan store.Takeover
}

func (s suspected) WatchLeader(ctx context.Context) <-chan store.Candidate {
	return untilEnd(ctx, s.leader)
}

func (s suspected) Depose(ctx context.Context, _ store.Candidate, by store.Takeover) error {
	select {
	case s.takeover <- by:
	case <-ctx.Done():
	}
	return ErrHeldDown
}

// A leader whose port is open and who says nothing is silent; when its process goes it is dead, and stays so for as long as
// the take-over is held down.
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
	db := suspected{newMemory(), store.Candidate{Key: "/master/lock/1", Revision: 1, Address: listener.Addr().String(), Lease: "1"}, make(chan store.Takeover)}
	logger, _ := logtest.NewNullLogger()
	s := &standby{config: Config{Store: db, Log: logrus.NewEntry(logger), Holddown: time.Minute}, own: func() string { return "2" }}
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
			t.Fatal("nobody deposes it")
		}
		return store.Takeover{}
	}
	if by := next(); !by.Silent || by.Holddown != time.Minute {
		t.Errorf("a leader that says nothing is deposed by %+v", by)
	}
	die()
	for next().Silent { // what was judged before
	}
	for range 5 * int(time.Second/decide.BeatEvery) / 5 {
		if by := next(); by.Silent {
			t.Fatalf("a leader that is gone is deposed by %+v", by)
		}
	}
}

// A standby that is accepted and turned away, as by a port with too many connections, dials
// again with pauses.
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
	db := suspected{newMemory(), store.Candidate{Key: "/master/lock/1", Revision: 1, Address: listener.Addr().String(), Lease: "1"}, make(chan store.Takeover)}
	logger, _ := logtest.NewNullLogger()
	s := &standby{config: Config{Store: db, Log: logrus.NewEntry(logger), Holddown: time.Minute}, own: func() string { return "2" }}
	ctx, cancel := context.WithCancel(t.Context())
	var standing sync.WaitGroup
	standing.Go(func() { _ = s.run(ctx) })
	defer standing.Wait()
	defer cancel()
	began := time.Now()
	for range 3 { // each after three heartbeats that were missed
		<-db.takeover
	}
	most := 10 + int64(time.Since(began)/decide.BeatEvery)
	if n := accepted.Load(); n > most {
		t.Errorf("%d connections in %v, expected at most %d", n, time.Since(began), most)
	}
}

// A key with our address is one that an earlier start left behind, and nobody is there to miss it, unless it is our own.
func TestPredecessor(t *testing.T) {
	const here, there = "10.0.0.1:8080", "10.0.0.2:8080"
	for name, tt := range map[string]struct {
		own     string
		suspect store.Candidate
		want    decide.Verdict
	}{
		"an earlier start":              {"2", store.Candidate{Key: "/master/lock/1", Address: here, Lease: "1"}, decide.Dead},
		"our own key":                   {"2", store.Candidate{Key: "/master/lock/2", Address: here, Lease: "2"}, decide.Alive},
		"before we know our own key":    {"", store.Candidate{Key: "/master/lock/2", Address: here, Lease: "2"}, decide.Alive},
		"a master at another address":   {"2", store.Candidate{Key: "/master/lock/1", Address: there, Lease: "1"}, decide.Alive},
		"nobody is in the queue at all": {"2", store.Candidate{}, decide.Alive},
	} {
		watch := decide.Watch{Address: here}
		for n := range 2 { // at once, and at the next look
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
