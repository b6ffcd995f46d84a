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

// limited starts a server without a master.
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

// alive requests /healthz over a connection.
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

// F64: a new connection beyond the limit replaces the connection with the longest idle time.
func TestNewConnectionReplacesOldestIdle(t *testing.T) {
	var server *httpapi.Server
	addr := limited(t, func(s *httpapi.Server) { server = s })
	// The server answers first and notes the end of the request after it.
	noted := func() {
		for deadline := time.Now().Add(30 * time.Second); server.Requests() > 0; time.Sleep(time.Millisecond) { // asks again
			if time.Now().After(deadline) {
				t.Fatal("the end of an answered request was not noted")
			}
		}
	}
	probe := func() net.Conn {
		t.Helper()
		conn := connect(t, addr)
		if err := alive(conn); err != nil {
			t.Fatalf("a new connection: %v", err)
		}
		noted()
		return conn
	}
	open := func(conn net.Conn) bool {
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		err := alive(conn)
		noted()
		return err == nil
	}
	silent, used, idle := connect(t, addr), probe(), probe()
	for range httpapi.MaxConnections - 3 {
		probe()
	}
	if !open(used) {
		t.Fatal("connection within the limit: expected it to be open")
	}
	probe()
	if open(silent) {
		t.Error("connection without a request: expected its end")
	}
	probe()
	if open(idle) {
		t.Error("connection with the longest idle time: expected its end")
	}
	if !open(used) {
		t.Error("recently used connection: expected it to be open")
	}
}

// F64: connections with half a request do not block probes for long.
func TestHalfRequestsDoNotBlockProbes(t *testing.T) {
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
			t.Fatalf("requests under way: found %d, expected %d", server.Requests(), httpapi.MaxConnections)
		}
		time.Sleep(time.Millisecond) // interval between checks
	}
	for alive(connect(t, addr)) != nil {
		if time.Since(began) > 8*time.Second { // the server closes half requests after 10 s
			t.Fatal("new connection: expected an answer")
		}
		time.Sleep(50 * time.Millisecond) // interval between checks
	}
}

func TestIdleConnectionIsClosed(t *testing.T) {
	addr := limited(t, func(s *httpapi.Server) {
		if s.IdleTimeout() == 0 {
			t.Error("expected an idle timeout")
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
		t.Errorf("idle connection: read %q, %v, expected its end", rest, err)
	}
}
