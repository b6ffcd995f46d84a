package portsplit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"trainmaster/internal/portsplit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// split starts a split port whose branches echo their name and then what they read.
func split(t *testing.T, config portsplit.Config, prefaces ...string) (addr string, stop func() error, logged func() string) {
	t.Helper()
	return splitOn(t, listen(t), config, prefaces...)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func splitOn(t *testing.T, listener net.Listener, config portsplit.Config, prefaces ...string) (addr string, stop func() error, logged func() string) {
	t.Helper()
	logger, hook := logtest.NewNullLogger()
	logger.SetLevel(logrus.DebugLevel)
	config.Log = logrus.NewEntry(logger)
	s := portsplit.New(listener, config)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, preface := range prefaces {
		branch := s.Branch(preface)
		if branch.Addr().String() != listener.Addr().String() {
			t.Errorf("branch %q is at %v", preface, branch.Addr())
		}
		wg.Go(func() {
			for {
				conn, err := branch.Accept()
				if err != nil {
					if !errors.Is(err, net.ErrClosed) {
						t.Errorf("branch %q ended with %v", preface, err)
					}
					return
				}
				wg.Go(func() {
					defer conn.Close()
					stop := context.AfterFunc(ctx, func() { conn.Close() })
					defer stop()
					_, _ = fmt.Fprintf(conn, "<%s>", preface)
					_, _ = io.Copy(conn, conn)
				})
			}
		})
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		err := <-done
		wg.Wait()
		return err
	})
	t.Cleanup(func() { _ = stop() })
	return listener.Addr().String(), stop, func() string {
		var text strings.Builder
		for _, e := range hook.AllEntries() {
			text.WriteString(e.Message + "\n")
		}
		return text.String()
	}
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// wantEcho reads what a branch sends.
func wantEcho(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v; want %q", got[:n], err, want)
	}
}

// wantClosed waits for the end of a connection that received nothing.
func wantClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if got, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) || len(got) > 0 {
		t.Fatalf("expected the end, got %q, %v", got, err)
	}
}

// Each connection goes to the branch of its first bytes, and nothing of it is lost, however
// the bytes come.
func TestBranches(t *testing.T) {
	addr, _, _ := split(t, portsplit.Config{}, portsplit.HTTPConnect, portsplit.HTTPGet, portsplit.HTTP2)
	for preface, whole := range map[string]string{
		portsplit.HTTPConnect: "CONNECT /_goRPC_ HTTP/1.0\n\n",
		portsplit.HTTPGet:     "GET /beats HTTP/1.1\r\n\r\n",
		portsplit.HTTP2:       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		at := dial(t, addr)
		send(t, at, whole)
		wantEcho(t, at, "<"+preface+">"+whole)
		slow := dial(t, addr)
		for _, b := range whole[:6] {
			send(t, slow, string(b))
			time.Sleep(time.Millisecond) // so that each byte arrives in its own read
		}
		wantEcho(t, slow, "<"+preface+">"+whole[:6])
	}
}

// Connections without a known preface within the timeout are closed. Other connections are served in the same time.
func TestUnknownPrefaceIsClosed(t *testing.T) {
	addr, _, logged := split(t, portsplit.Config{HelloTimeout: time.Second}, portsplit.HTTPGet)
	silent, short, other, gone := dial(t, addr), dial(t, addr), dial(t, addr), dial(t, addr)
	send(t, short, "GET")
	send(t, other, "POST / HTTP/1.1\r\n\r\n")
	send(t, gone, "G")
	gone.Close()
	right := dial(t, addr)
	send(t, right, "GET /")
	wantEcho(t, right, "<GET >GET /")
	wantClosed(t, other)
	wantClosed(t, silent)
	wantClosed(t, short)
	time.Sleep(1200 * time.Millisecond) // the timeout is for the hello alone
	send(t, right, "more")
	wantEcho(t, right, "more")
	if !strings.Contains(logged(), "unknown protocol") {
		t.Errorf("the log lacks the unknown protocol: %s", logged())
	}
}

// Connections above the maximum are closed immediately. After others end, new connections are accepted.
func TestTooManyConnections(t *testing.T) {
	addr, _, logged := split(t, portsplit.Config{MaxConnections: 3}, portsplit.HTTPGet)
	var conns []net.Conn
	for range 3 {
		conn := dial(t, addr)
		send(t, conn, "GET ")
		wantEcho(t, conn, "<GET >GET ")
		conns = append(conns, conn)
	}
	for range 5 {
		wantClosed(t, dial(t, addr))
	}
	if !strings.Contains(logged(), "connection refused: too many") {
		t.Errorf("not in the log: %s", logged())
	}
	conns[0].Close()
	for deadline := time.Now().Add(10 * time.Second); ; {
		conn := dial(t, addr)
		_, _ = io.WriteString(conn, "GET ")
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, _ := conn.Read(make([]byte, 1)); n == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no room after one has gone")
		}
	}
}

// The branch with a reserve is served if active connections use all other places, and if silent connections use the reserve
// itself.
func TestReservedBranchIsServedWhenThePortIsFull(t *testing.T) {
	config := portsplit.Config{MaxConnections: 3, Reserved: portsplit.HTTPGet, Reserve: 8, HelloTimeout: time.Hour}
	addr, _, logged := split(t, config, portsplit.HTTPConnect, portsplit.HTTPGet)
	for range 3 {
		conn := dial(t, addr)
		send(t, conn, "CONN")
		wantEcho(t, conn, "<CONN>CONN")
	}
	first := dial(t, addr)
	send(t, first, "GET ")
	wantEcho(t, first, "<GET >GET ")
	other := dial(t, addr)
	send(t, other, "CONN")
	wantClosed(t, other)
	var silent []net.Conn
	for range 20 {
		silent = append(silent, dial(t, addr))
	}
	second := dial(t, addr)
	send(t, second, "GET ")
	wantEcho(t, second, "<GET >GET ")
	wantClosed(t, silent[0])
	if n := strings.Count(logged(), "connection refused: too many"); n != 1 {
		t.Errorf("%d log lines about refused connections within ten seconds, expected 1: %s", n, logged())
	}
}

// A connection for the branch with the reserve is always accepted. It replaces a connection of the
// host with the most connections: an idle connection if there is one, else the oldest.
func TestNewReservedConnectionAlwaysGetsIn(t *testing.T) {
	config := portsplit.Config{MaxConnections: 3, Reserved: portsplit.HTTPGet, Reserve: 8, HelloTimeout: time.Hour}
	addr, _, _ := split(t, config, portsplit.HTTPGet)
	get := func(conn net.Conn) net.Conn {
		t.Helper()
		send(t, conn, "GET ")
		wantEcho(t, conn, "<GET >GET ")
		return conn
	}
	use := func(conns ...net.Conn) {
		t.Helper()
		for _, conn := range conns {
			send(t, conn, "x")
			wantEcho(t, conn, "x")
		}
	}
	other, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp", addr)
	if err != nil {
		t.Skipf("this machine has no address 127.0.0.2: %v", err)
	}
	defer other.Close()
	get(other) // the oldest of all, of a host with one connection
	var conns []net.Conn
	for range 5 { // together with the other connection, three quarters of the reserve
		conns = append(conns, get(dial(t, addr)))
	}
	get(dial(t, addr)) // none is idle: the oldest is closed
	wantClosed(t, conns[0])
	for range 20 {
		get(dial(t, addr))
	}
	use(other)

	addr, _, _ = split(t, config, portsplit.HTTPGet)
	conns = nil
	for range 6 {
		conns = append(conns, get(dial(t, addr)))
	}
	idle := conns[3]
	for until := time.Now().Add(portsplit.IdleAfter + 100*time.Millisecond); time.Now().Before(until); {
		use(slices.Concat(conns[:3], conns[4:])...)
	}
	get(dial(t, addr))
	wantClosed(t, idle)
}

// A stopped port is closed and its branches end. Stopping does not wait for silent connections.
func TestStop(t *testing.T) {
	listener := listen(t)
	addr, stop, _ := splitOn(t, listener, portsplit.Config{HelloTimeout: time.Hour}, portsplit.HTTPGet)
	silent, right := dial(t, addr), dial(t, addr)
	send(t, right, "GET ")
	wantEcho(t, right, "<GET >GET ")
	began := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("stopping took %v", took)
	}
	wantClosed(t, silent)
	if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) { // another process may already listen on the port
		t.Errorf("the port is open: %v", err)
	}
}

// A connection belongs to its receiver from Accept on: if Run ends immediately after Accept, the receiver still reads from it.
func TestRunEndsRightAfterAConnectionWasAccepted(t *testing.T) {
	for range 300 {
		listener := listen(t)
		logger, _ := logtest.NewNullLogger()
		s := portsplit.New(listener, portsplit.Config{Log: logrus.NewEntry(logger)})
		branch := s.Branch("one\n")
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		client := dial(t, listener.Addr().String())
		send(t, client, "one\n")
		conn, err := branch.Accept()
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		send(t, client, "more")
		if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil {
			t.Fatal("an accepted connection: ", err)
		}
		conn.Close()
		client.Close()
	}
}

// A closed branch refuses its connections; other branches are served. A branch without an accepting server delays only its
// own connections.
func TestClosedBranch(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := portsplit.New(listener, portsplit.Config{})
	closed, used := s.Branch("AAAA"), s.Branch(portsplit.HTTPGet)
	s.Branch("BBBB") // no server accepts from it
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") })}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() { _ = server.Serve(used) })
	defer wg.Wait()
	defer server.Close()
	defer cancel()
	if err := errors.Join(closed.Close(), closed.Close()); err != nil {
		t.Error(err)
	}
	if _, err := closed.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	a, b := dial(t, listener.Addr().String()), dial(t, listener.Addr().String())
	send(t, a, "AAAA")
	send(t, b, "BBBB")
	wantClosed(t, a)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "served" {
		t.Errorf("got %q, %v", body, err)
	}
}

// A preface is four bytes: anything else is a mistake of the program.
func TestPrefaceOfFourBytes(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), `"GET": expected 4 bytes`) {
			t.Errorf("got %v", r)
		}
	}()
	portsplit.New(listener, portsplit.Config{}).Branch("GET")
}

// F64: connections that never say hello take little memory.
func TestSilentConnectionsTakeLittle(t *testing.T) {
	const n = 500
	addr, _, _ := split(t, portsplit.Config{}, portsplit.HTTPGet)
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := memory()
	for range n {
		dial(t, addr)
	}
	last := dial(t, addr)
	send(t, last, "GET ")
	wantEcho(t, last, "<GET >GET ") // so that all before it are accepted
	if each := (memory() - before) / n; each > 24<<10 {
		t.Errorf("a silent connection takes %d bytes", each)
	} else {
		t.Logf("%d bytes for each silent connection, both ends", each)
	}
}

// Connections of a listener that has joined go to the same branches, and end with the port.
func TestJoin(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	second, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := portsplit.New(first, portsplit.Config{})
	s.Join(second)
	branch := s.Branch("ABCD")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for _, l := range []net.Listener{first, second} {
		out, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if _, err := io.WriteString(out, "ABCD"); err != nil {
			t.Fatal(err)
		}
		in, err := branch.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if in.LocalAddr().String() != l.Addr().String() {
			t.Errorf("a connection at %v, expected one at %v", in.LocalAddr(), l.Addr())
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, l := range []net.Listener{first, second} {
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the listener at %v is open: %v", l.Addr(), err)
		}
	}
}
