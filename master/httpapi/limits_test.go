package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/httpapi"
)

// limited serves a face without a master.
func limited(t *testing.T, prepare func(*httpapi.Server)) (addr string) {
	t.Helper()
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	s := httpapi.Starting(logrus.NewEntry(quiet))
	prepare(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func connect(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// alive asks over a connection whether the process lives.
func alive(conn net.Conn) error {
	if _, err := fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	answer := make([]byte, 1024)
	n, err := conn.Read(answer)
	if err == nil && !strings.Contains(string(answer[:n]), "200 OK") {
		err = fmt.Errorf("answered %q", answer[:n])
	}
	return err
}

// F64: a new connection beyond the limit takes the place of the one that has been silent or idle for longest.
func TestNewConnectionTakesThePlaceOfTheOldestIdle(t *testing.T) {
	addr := limited(t, func(*httpapi.Server) {})
	probe := func() net.Conn {
		t.Helper()
		conn := connect(t, addr)
		if err := alive(conn); err != nil {
			t.Fatalf("a new connection: %v", err)
		}
		return conn
	}
	open := func(conn net.Conn) bool {
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		return alive(conn) == nil
	}
	silent, used, idle := connect(t, addr), probe(), probe()
	for range httpapi.MaxConnections - 3 {
		probe()
	}
	if !open(used) {
		t.Fatal("a connection within the limit was closed")
	}
	probe()
	if open(silent) {
		t.Error("the connection that never sent anything is open")
	}
	probe()
	if open(idle) {
		t.Error("the connection that has been idle for longest is open")
	}
	if !open(used) {
		t.Error("a connection that was used lately was closed")
	}
}

// F64: connections that send half of a request take no probe's place for long.
func TestHalfRequestsGiveWay(t *testing.T) {
	var server *httpapi.Server
	addr := limited(t, func(s *httpapi.Server) { server = s })
	for range httpapi.MaxConnections {
		if _, err := io.WriteString(connect(t, addr), "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for server.Requests() < httpapi.MaxConnections {
		if time.Since(began) > 8*time.Second {
			t.Fatalf("%d requests are under way, expected %d", server.Requests(), httpapi.MaxConnections)
		}
		time.Sleep(time.Millisecond)
	}
	for alive(connect(t, addr)) != nil {
		if time.Since(began) > 8*time.Second { // the server closes half requests after 10 s
			t.Fatal("no new connection is served")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestIdleConnectionIsClosed(t *testing.T) {
	addr := limited(t, func(s *httpapi.Server) {
		if s.IdleTimeout() == 0 {
			t.Error("idle connections stay")
		}
		s.SetIdleTimeout(20 * time.Millisecond)
	})
	conn := connect(t, addr)
	if err := alive(conn); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	rest, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("an idle connection: read %q, %v, expected its end", rest, err)
	}
}
