package pscontrol

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

// fakeServers is a registry whose content a test sets.
type fakeServers struct {
	now     chan []store.Server
	evicted chan store.Server
	refuse  chan error // one error for each eviction that fails
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

// attended runs attend for a leader until the test ends.
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

// port returns a listener and a function that accepts its next connection.
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

// F54: a parameter server whose port refuses connections after its connection broke is evicted, also if etcd fails
// once. A server that closes connections, and a server that does not answer, are not evicted.
func TestDeadParameterServerIsEvicted(t *testing.T) {
	f := attended(t)
	dying, acceptDying := port(t)
	living, acceptLiving := port(t)
	dead, alive := store.Server{Index: 0, Addr: dying.Addr().String(), Lease: 7}, store.Server{Index: 1, Addr: living.Addr().String(), Lease: 8}
	f.now <- []store.Server{dead, alive}
	first := acceptDying()
	for range 3 {
		acceptLiving().Close() // as a port closes an idle connection
	}
	acceptLiving()
	f.refuse <- errors.New("etcd is away")
	dying.Close()
	first.Close()
	select {
	case got := <-f.evicted:
		if got != dead {
			t.Errorf("eviction: got %+v", got)
		}
	case <-time.After(time.Minute):
		t.Fatal("dead server: expected its eviction")
	}
	f.now <- []store.Server{alive}
	f.now <- []store.Server{alive} // the first server is no longer watched
	for len(f.evicted) > 0 {
		if got := <-f.evicted; got != dead {
			t.Errorf("eviction: got %+v", got)
		}
	}
}

// A server that was never reached is not evicted before its lease ends, because only the leader may have a wrong
// address.
func TestParameterServerThatWasNeverReachedIsNotEvicted(t *testing.T) {
	f := attended(t)
	closed, _ := port(t)
	closed.Close()
	living, acceptLiving := port(t)
	f.now <- []store.Server{{Index: 0, Addr: closed.Addr().String(), Lease: 7}, {Index: 1, Addr: living.Addr().String(), Lease: 8}}
	for range 3 { // each after a pause with an attempt to reach the other server
		acceptLiving().Close()
	}
	if len(f.evicted) > 0 {
		t.Errorf("expected no eviction, got %+v", <-f.evicted)
	}
}

// listedBeforeAnswer is a registry that lists the remaining servers before it answers an eviction.
type listedBeforeAnswer struct{ *fakeServers }

func (f listedBeforeAnswer) Evict(ctx context.Context, _ store.Server) error {
	f.now <- nil
	f.now <- nil // the list without the evicted server has arrived
	return ctx.Err()
}

// The log reports a freed index, also if the registry lists the remaining servers before it answers the eviction.
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
		t.Error("log: expected the eviction")
	}
}

// renewing is a registry with a server that renews its claim several times.
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

// A refusing port of a server that renews its claim is checked again. The server is evicted once it no longer renews
// the claim.
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
			t.Errorf("evicted server: %+v, remaining renewals: %d", got, len(f.left))
		}
	case <-time.After(20 * time.Second):
		t.Fatal("expected an eviction")
	}
	if text := <-logged; text != "parameter server died: index freed" {
		t.Errorf("logged %q", text)
	}
}

type hook func(*logrus.Entry)

func (h hook) Levels() []logrus.Level     { return logrus.AllLevels }
func (h hook) Fire(e *logrus.Entry) error { h(e); return nil }
