package tcpproxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 30 * time.Second
	silence  = 50 * time.Millisecond // how long what must not come is waited for
)

// before is a proxy before a server of the test's own.
func before(t *testing.T) (*Proxy, net.Listener) {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	p, err := New(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, server
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// connect makes a connection through the proxy, and returns both of its ends.
func connect(t *testing.T, p *Proxy, l net.Listener) (client, server net.Conn) {
	t.Helper()
	client = dial(t, p)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	for began := time.Now(); !linked(p, server); time.Sleep(time.Millisecond) { // interval between checks
		if time.Since(began) > patience {
			t.Fatal("the proxy does not pass bytes on between client and server")
		}
	}
	return client, server
}

// linked reports whether the proxy has registered its connection to server: the connection is open after that.
func linked(p *Proxy, server net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.requests.to.LocalAddr().String() == server.RemoteAddr().String() {
			return true
		}
	}
	return false
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func wantText(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(patience))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v, expected %q", got, err, want)
	}
}

// wantSilence fails when something comes, or the connection ends.
func wantSilence(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(silence))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v, expected silence", n, err)
	}
}

// wantEnd fails when anything but the end of the connection comes.
func wantEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(patience))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v, expected the end", n, err)
	}
}

func awaitHeld(t *testing.T, held func() int, want int) {
	t.Helper()
	for deadline := time.Now().Add(patience); held() != want; time.Sleep(time.Millisecond) { // interval between checks
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are held, expected %d", held(), want)
		}
	}
}

// One direction is held, in all connections, and the other is not. The counts include all sent bytes. At the end all bytes are
// forwarded in order, and then the end of the stream.
func TestHold(t *testing.T) {
	p, l := before(t)
	for _, direction := range []struct {
		name        string
		hold        func(bool)
		held, other func() int
		ends        func(client, server net.Conn) (from, to net.Conn)
	}{
		{"requests", p.HoldRequests, p.HeldRequests, p.HeldReplies, func(client, server net.Conn) (from, to net.Conn) { return client, server }},
		{"replies", p.HoldReplies, p.HeldReplies, p.HeldRequests, func(client, server net.Conn) (from, to net.Conn) { return server, client }},
	} {
		t.Run(direction.name, func(t *testing.T) {
			from, to := direction.ends(connect(t, p, l))
			direction.hold(true)
			lateFrom, lateTo := direction.ends(connect(t, p, l))
			sent := make([]byte, window/4)
			rand.NewChaCha8([32]byte{1}).Read(sent)
			if _, err := from.Write(sent); err != nil {
				t.Fatal(err)
			}
			send(t, lateFrom, "late")
			awaitHeld(t, direction.held, len(sent)+len("late"))
			send(t, to, "the other way")
			wantText(t, from, "the other way")
			if err := from.Close(); err != nil {
				t.Fatal(err)
			}
			wantSilence(t, to)
			wantSilence(t, lateTo)
			if n := direction.other(); n != 0 {
				t.Errorf("%d bytes of the other direction are held", n)
			}

			direction.hold(false)
			to.SetReadDeadline(time.Now().Add(patience))
			if got, err := io.ReadAll(to); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes came, %v, expected the %d that were sent", len(got), err, len(sent))
			}
			wantText(t, lateTo, "late")
			awaitHeld(t, direction.held, 0)
		})
	}
}

func TestCut(t *testing.T) {
	p, l := before(t)
	client, server := connect(t, p, l)
	p.HoldRequests(true)
	send(t, client, "lost")
	awaitHeld(t, p.HeldRequests, len("lost"))
	p.Cut()
	if n := p.HeldRequests(); n != 0 {
		t.Errorf("%d bytes of no connection are held", n)
	}
	p.HoldRequests(false)
	wantEnd(t, client)
	wantEnd(t, server)
	client, server = connect(t, p, l)
	send(t, client, "new")
	wantText(t, server, "new")
}

// A delay applies to one direction. A new delay also applies to bytes in transit.
func TestDelay(t *testing.T) {
	p, l := before(t)
	client, server := connect(t, p, l)
	p.Delay(time.Hour, 0)
	send(t, client, "slow")
	send(t, server, "fast")
	wantText(t, client, "fast")
	wantSilence(t, server)
	p.Delay(0, time.Hour)
	wantText(t, server, "slow")
	send(t, server, "slow")
	wantSilence(t, client)
	p.Delay(0, 0)
	wantText(t, client, "slow")
}

func TestRefuse(t *testing.T) {
	p, l := before(t)
	client, server := connect(t, p, l)
	send(t, client, "open")
	wantText(t, server, "open")
	p.Refuse(true)
	wantEnd(t, dial(t, p))
	send(t, client, "open still")
	wantText(t, server, "open still")

	// A connection that was admitted before, and whose server is still being dialled.
	late, far := net.Pipe()
	p.connect(t.Context(), late, l.Addr().String())
	wantEnd(t, far)
	dialled, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	wantEnd(t, dialled)

	p.Refuse(false)
	client, server = connect(t, p, l)
	send(t, client, "open again")
	wantText(t, server, "open again")
}

// If the server does not listen, the proxy closes the connection of the client.
func TestTargetIsAway(t *testing.T) {
	p, l := before(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, dial(t, p))
}

func TestCloseEndsEverything(t *testing.T) {
	p, l := before(t)
	held, heldAt := connect(t, p, l)
	p.HoldRequests(true)
	p.Delay(0, time.Hour)
	send(t, held, "held")
	send(t, heldAt, "delayed")
	awaitHeld(t, p.HeldRequests, len("held"))
	awaitHeld(t, p.HeldReplies, len("delayed"))
	slow, closed := make(chan struct{}), make(chan struct{})
	p.wg.Go(func() { <-slow })
	go func() {
		defer close(closed)
		p.Close()
	}()
	select {
	case <-closed:
		t.Error("it did not wait for its goroutines")
	case <-time.After(silence):
	}
	close(slow)
	<-closed
	wantEnd(t, held)
	wantEnd(t, heldAt)
	if conn, err := net.Dial("tcp", p.Addr()); err == nil {
		conn.Close()
		t.Error("it listens still")
	}
}

// After SetTarget connections to the former server end, and new ones go to the new server.
func TestSetTargetMovesConnections(t *testing.T) {
	p, first := before(t)
	toFirst, _ := connect(t, p, first)
	p.SetTarget("")
	wantEnd(t, dial(t, p))
	wantSilence(t, toFirst) // without a target, open connections stay

	second, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { second.Close() })
	p.SetTarget(second.Addr().String())
	wantEnd(t, toFirst)
	client, server := connect(t, p, second)
	p.SetTarget(second.Addr().String()) // the same one: nothing changes
	send(t, client, "request")
	wantText(t, server, "request")
}
