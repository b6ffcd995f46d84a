package largemsg

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// Messages share memory by the bytes that have arrived. A message of the host with the most bytes yields to messages
// of other hosts. A message without progress yields to every message.
func TestArrivingMessagesShareMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := New()
		arrive := func(host string) (net.Conn, *Message) {
			near, far := net.Pipe()
			t.Cleanup(func() { near.Close() })
			return far, &Message{Host: host, Conn: near}
		}
		closed := func(conn net.Conn) bool {
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond)) // virtual time
			_, err := conn.Read(make([]byte, 1))
			return errors.Is(err, io.EOF)
		}
		const half = MaxArriving / 2
		first, a := arrive("a")
		second, b := arrive("a")
		if err := errors.Join(large.Grow(a, half), large.Grow(b, half)); err != nil {
			t.Fatal(err)
		}
		_, c := arrive("a")
		if err := large.Grow(c, 1); !errors.Is(err, ErrBusy) {
			t.Errorf("more than the memory by one host: got %v", err)
		}
		_, d := arrive("b")
		if err := large.Grow(d, 1); err != nil || !closed(first) || closed(second) {
			t.Errorf("other host: got %v; end of the oldest message %v, of the other %v", err, closed(first), closed(second))
		}
		if err := large.Grow(a, 1); !errors.Is(err, net.ErrClosed) {
			t.Errorf("message that yielded: got %v", err)
		}
		if err := large.Grow(d, half-1); err != nil {
			t.Errorf("up to half the memory: got %v", err)
		}
		if err := large.Grow(d, 1); !errors.Is(err, ErrBusy) || closed(second) {
			t.Errorf("above half the memory: got %v", err)
		}
		_, e := arrive("b")
		if err := large.Grow(e, half); err != nil {
			t.Errorf("after a refusal: got %v", err)
		}
		time.Sleep(staleAfter / 2) // virtual time
		if err := large.Grow(e, 0); err != nil {
			t.Error(err)
		}
		time.Sleep(staleAfter / 2) // virtual time
		if err := large.Grow(e, 1); err != nil || !closed(second) {
			t.Errorf("message without progress for %v: expected it to yield, got %v", staleAfter, err)
		}
		large.End(e)
		large.End(e)
		if large.arriving.Len() != 0 || large.bytes != 0 || len(large.hosts) != 0 {
			t.Errorf("%d messages with %d bytes are arriving, %v by host", large.arriving.Len(), large.bytes, large.hosts)
		}
	})
}
