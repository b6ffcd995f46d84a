package netrpc

import (
	"bufio"
	"bytes"
	"encoding/gob"
	"errors"
	"io"
	"net"
	"net/rpc"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/netrpc/wire"
)

// Large reports in memory are counted, also if a client uses one number for all of them. A report beyond the limit is
// refused, and the stream continues.
func TestLargeReportsOfOneNumber(t *testing.T) {
	const most = maxReports / 2 // limit of one host
	server := &Server{Log: logrus.NewEntry(logrus.New()), timeouts: defaultTimeouts, large: newLargeMessages(), turns: newTurns()}
	near, far := net.Pipe()
	defer far.Close()
	codec := newCodec(&connection{ctx: t.Context(), server: server}, near, bufio.NewReader(near), func() {})
	go func() {
		var message bytes.Buffer
		encoder := gob.NewEncoder(&message)
		for err := error(nil); err == nil; { // until the server closes the connection
			_ = encoder.Encode(rpc.Request{ServiceMethod: reportDataset, Seq: 7}) // a buffer accepts every byte
			_ = encoder.Encode([]string{strings.Repeat("x", 1<<20)})
			_, err = message.WriteTo(far)
		}
	}()
	read := func() error {
		var request rpc.Request
		if err := codec.ReadRequestHeader(&request); err != nil {
			t.Fatal(err)
		}
		var names []string
		return codec.ReadRequestBody(&names)
	}
	for i := range most + 2 {
		if err := read(); errors.Is(err, wire.ErrBusy) != (i >= most) {
			t.Fatalf("report %d of %d: %v", i+1, most, err)
		}
	}
	codec.release(7)
	if err := read(); err != nil {
		t.Errorf("after an answer: got %v", err)
	}
	codec.releaseAll()
	if n := server.large.reports; n != 0 || len(server.large.hosts) != 0 {
		t.Errorf("after the end of the connection: found %d reports, %v", n, server.large.hosts)
	}
	near.Close()
}

// Messages share memory by the bytes that have arrived. A message of the host with the most bytes yields to messages
// of other hosts. A message without progress yields to every message.
func TestArrivingMessagesShareMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := newLargeMessages()
		arrive := func(host string) (net.Conn, *incomingMessage) {
			near, far := net.Pipe()
			t.Cleanup(func() { near.Close() })
			return far, &incomingMessage{host: host, conn: near}
		}
		closed := func(conn net.Conn) bool {
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond)) // virtual time
			_, err := conn.Read(make([]byte, 1))
			return errors.Is(err, io.EOF)
		}
		const half = maxArriving / 2
		first, a := arrive("a")
		second, b := arrive("a")
		if err := errors.Join(large.grow(a, half), large.grow(b, half)); err != nil {
			t.Fatal(err)
		}
		_, c := arrive("a")
		if err := large.grow(c, 1); !errors.Is(err, wire.ErrBusy) {
			t.Errorf("more than the memory by one host: got %v", err)
		}
		_, d := arrive("b")
		if err := large.grow(d, 1); err != nil || !closed(first) || closed(second) {
			t.Errorf("other host: got %v; end of the oldest message %v, of the other %v", err, closed(first), closed(second))
		}
		if err := large.grow(a, 1); !errors.Is(err, net.ErrClosed) {
			t.Errorf("message that yielded: got %v", err)
		}
		if err := large.grow(d, half-1); err != nil {
			t.Errorf("up to half the memory: got %v", err)
		}
		if err := large.grow(d, 1); !errors.Is(err, wire.ErrBusy) || closed(second) {
			t.Errorf("above half the memory: got %v", err)
		}
		_, e := arrive("b")
		if err := large.grow(e, half); err != nil {
			t.Errorf("after a refusal: got %v", err)
		}
		time.Sleep(staleAfter / 2) // virtual time
		if err := large.grow(e, 0); err != nil {
			t.Error(err)
		}
		time.Sleep(staleAfter / 2) // virtual time
		if err := large.grow(e, 1); err != nil || !closed(second) {
			t.Errorf("message without progress for %v: expected it to yield, got %v", staleAfter, err)
		}
		large.end(e)
		large.end(e)
		if large.arriving.Len() != 0 || large.bytes != 0 || len(large.hosts) != 0 {
			t.Errorf("%d messages with %d bytes are arriving, %v by host", large.arriving.Len(), large.bytes, large.hosts)
		}
	})
}
