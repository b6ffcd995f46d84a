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

func TestConnectionsBeyondTheLimitAreClosed(t *testing.T) {
	addr := limited(t, func(*httpapi.Server) {})
	conns := make([]net.Conn, httpapi.MaxConnections)
	for i := range conns {
		conns[i] = connect(t, addr)
		if err := alive(conns[i]); err != nil {
			t.Fatalf("connection %d of %d: %v", i+1, len(conns), err)
		}
	}
	if err := alive(connect(t, addr)); err == nil {
		t.Errorf("a connection beyond %d was served", len(conns))
	}
	conns[0].Close()
	for deadline := time.Now().Add(30 * time.Second); alive(connect(t, addr)) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("no room after a connection was closed")
		}
	}
	if err := alive(conns[1]); err != nil {
		t.Errorf("a connection within the limit: %v", err)
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
