package portsplit_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"trainmaster/internal/portsplit"
)

// Bytes of an unknown protocol are logged once a minute for each host.
func TestUnknownProtocolIsLoggedOnce(t *testing.T) {
	addr, stop, logged := split(t, portsplit.Config{}, "TMPS")
	for range 5 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "\x16\x03\x01 garbage"); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("garbage was answered")
		}
		_ = conn.Close()
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(logged(), "connection closed: unknown protocol"); n != 1 {
		t.Errorf("%d lines about five connections of a host, want 1: %s", n, logged())
	}
}

// A client of HTTP or net/rpc that dials a port of another protocol reads what it found.
func TestMisdirectedClientReadsWhatItFound(t *testing.T) {
	addr, _, _ := split(t, portsplit.Config{Misdirected: "this is a data port"}, "TMPS")
	for _, request := range []string{"CONNECT /_goRPC_ HTTP/1.0\n\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%q: %v", request, err)
		}
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusMisdirectedRequest || string(text) != "this is a data port\n" {
			t.Errorf("%q: found %s, %q, %v", request, answer.Status, text, err)
		}
		_ = conn.Close()
	}
}
