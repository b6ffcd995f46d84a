package master

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"trainmaster/master/store"
)

// fakeServers is a registry that a test writes.
type fakeServers struct {
	now     chan []store.Server
	evicted chan store.Server
	refuse  chan error // one for each eviction that fails
}

func (f *fakeServers) Each(ctx context.Context, changed func([]store.Server)) error {
	for {
		select {
		case now := <-f.now:
			changed(now)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (f *fakeServers) Evict(_ context.Context, s store.Server) error {
	select {
	case err := <-f.refuse:
		return err
	default:
	}
	f.evicted <- s
	return nil
}

// attended runs the attendance of a leader until the test ends.
func attended(t *testing.T) *fakeServers {
	t.Helper()
	f := &fakeServers{now: make(chan []store.Server), evicted: make(chan store.Server, 100), refuse: make(chan error, 1)}
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := (&attendance{f, logrus.NewEntry(log), func() {}}).run(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	return f
}

// port is one that a process listens at.
func port(t *testing.T) (l net.Listener, accept func() net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, func() net.Conn {
		t.Helper()
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

// F54: a parameter server whose port refuses after its connection broke is evicted, also when etcd fails once. One that closes
// connections, and one that does not answer, are not.
func TestDeadParameterServerIsEvicted(t *testing.T) {
	f := attended(t)
	dying, acceptDying := port(t)
	living, acceptLiving := port(t)
	dead, alive := store.Server{Index: 0, Addr: dying.Addr().String(), Lease: 7}, store.Server{Index: 1, Addr: living.Addr().String(), Lease: 8}
	f.now <- []store.Server{dead, alive}
	first := acceptDying()
	for range 3 {
		acceptLiving().Close() // as a port does with a connection that is silent for long
	}
	acceptLiving()
	f.refuse <- errors.New("etcd is away")
	dying.Close()
	first.Close()
	select {
	case got := <-f.evicted:
		if got != dead {
			t.Errorf("evicted %+v", got)
		}
	case <-time.After(time.Minute):
		t.Fatal("a dead server was not evicted")
	}
	f.now <- []store.Server{alive}
	f.now <- []store.Server{alive} // the first one is no longer watched
	for len(f.evicted) > 0 {
		if got := <-f.evicted; got != dead {
			t.Errorf("evicted %+v", got)
		}
	}
}

// A server that was never reached is left to its lease: perhaps the address is only wrong for the leader.
func TestParameterServerThatWasNeverReachedIsNotEvicted(t *testing.T) {
	f := attended(t)
	closed, _ := port(t)
	closed.Close()
	living, acceptLiving := port(t)
	f.now <- []store.Server{{Index: 0, Addr: closed.Addr().String(), Lease: 7}, {Index: 1, Addr: living.Addr().String(), Lease: 8}}
	for range 3 { // each after a pause, in which the other one was dialed as well
		acceptLiving().Close()
	}
	if len(f.evicted) > 0 {
		t.Errorf("evicted %+v", <-f.evicted)
	}
}

// listedBeforeAnswer is a registry that names the servers that are left before it answers an eviction.
type listedBeforeAnswer struct{ *fakeServers }

func (f listedBeforeAnswer) Evict(ctx context.Context, _ store.Server) error {
	f.now <- nil
	f.now <- nil // the first one has been heard
	return ctx.Err()
}

// The log says that an index was freed, also when the registry names the servers that are left before the eviction has its answer.
func TestEvictionIsLoggedWhenTheRegistryIsFaster(t *testing.T) {
	logged := make(chan string, 10)
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.AddHook(hook(func(e *logrus.Entry) { logged <- e.Message }))
	f := &fakeServers{now: make(chan []store.Server)}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- (&attendance{listedBeforeAnswer{f}, logrus.NewEntry(log), func() {}}).run(ctx) }()
	defer func() { stop(); <-done }()
	dying, accept := port(t)
	f.now <- []store.Server{{Index: 0, Addr: dying.Addr().String(), Lease: 7}}
	conn := accept()
	dying.Close()
	conn.Close()
	select {
	case text := <-logged:
		if text != "parameter server died: index freed" {
			t.Errorf("logged %q", text)
		}
	case <-time.After(20 * time.Second):
		t.Error("the eviction was not logged")
	}
}

// renewing is a registry whose server renews its claim a number of times.
type renewing struct {
	*fakeServers
	left chan struct{}
}

func (f renewing) Evict(ctx context.Context, s store.Server) error {
	select {
	case <-f.left:
		return store.ErrRenewed
	default:
		return f.fakeServers.Evict(ctx, s)
	}
}

// A port that refuses, of a server that renews its claim, is asked again; once the server no longer renews it, it is evicted.
func TestServerIsEvictedOnceItRenewsNoMore(t *testing.T) {
	logged := make(chan string, 10)
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.AddHook(hook(func(e *logrus.Entry) { logged <- e.Message }))
	f := renewing{&fakeServers{now: make(chan []store.Server), evicted: make(chan store.Server, 1)}, make(chan struct{}, 5)}
	for range cap(f.left) {
		f.left <- struct{}{}
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- (&attendance{f, logrus.NewEntry(log), func() {}}).run(ctx) }()
	defer func() { stop(); <-done }()
	dying, accept := port(t)
	server := store.Server{Index: 0, Addr: dying.Addr().String(), Lease: 7}
	f.now <- []store.Server{server}
	conn := accept()
	dying.Close()
	conn.Close()
	select {
	case got := <-f.evicted:
		if got != server || len(f.left) > 0 {
			t.Errorf("evicted %+v with %d renewals left", got, len(f.left))
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the server was not evicted")
	}
	if text := <-logged; text != "parameter server died: index freed" {
		t.Errorf("logged %q", text)
	}
}

type hook func(*logrus.Entry)

func (h hook) Levels() []logrus.Level     { return logrus.AllLevels }
func (h hook) Fire(e *logrus.Entry) error { h(e); return nil }
