package trainer

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/netrpc/wire"
)

// If a master freezes during a large request, all calls leave it for the next master.
func TestMasterFrozenInALargeRequest(t *testing.T) {
	for _, protocol := range Protocols {
		t.Run(string(protocol), func(t *testing.T) { testMasterFrozenInALargeRequest(t, protocol) })
	}
}

// settings is an empty frame SETTINGS of HTTP/2.
const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

func testMasterFrozenInALargeRequest(t *testing.T, protocol Protocol) {
	serve := func(enough int64, reached chan<- struct{}) string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		accepting := make(chan struct{})
		t.Cleanup(func() { listener.Close(); <-accepting })
		go func() {
			defer close(accepting)
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { conn.Close() })
				if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
					t.Error(err)
				}
				r := bufio.NewReaderSize(conn, 16)
				if protocol == GRPC {
					_, _ = io.WriteString(conn, settings)
				} else if _, err := http.ReadRequest(r); err == nil {
					_, _ = io.WriteString(conn, "HTTP/1.0 200 Connected to Go RPC\n\n")
				}
				_, _ = io.CopyN(io.Discard, r, enough) // and reads no more
				select {
				case reached <- struct{}{}:
				default:
				}
			}
		}()
		return listener.Addr().String()
	}
	first, second := make(chan struct{}, 1), make(chan struct{}, 1)
	follow := NewFollow()
	follow.Set(serve(64<<10, first), 1) // during a report
	next := serve(1, second)
	l := &link{locate: follow, log: logrus.NewEntry(logrus.New()), patience: 300 * time.Millisecond, protocol: protocol}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	go func() {
		_, _ = call[int](ctx, l, "ReportDataset", []string{strings.Repeat("x", wire.MaxMessage-100)}) // there is no answer
		ended <- struct{}{}
	}()
	<-first
	go func() {
		_, _ = call[beatReply](ctx, l, "Heartbeat", beatRequest{})
		ended <- struct{}{}
	}()
	follow.Set(next, 2)
	await := func(what string, c <-chan struct{}) {
		select {
		case <-c:
		case <-time.After(20 * time.Second):
			t.Fatal(what)
		}
	}
	await("expected a call to the present leader", second)
	cancel()
	for range 2 {
		await("expected the call to return after the end of its context", ended)
	}
	l.close()
}
