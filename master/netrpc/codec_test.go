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

// Large reports in memory are counted, also where a stranger gives all of them one number. One
// too many is refused, and the stream goes on.
func TestLargeReportsOfOneNumber(t *testing.T) {
	const most = maxReports / 2 // of one host
	server := &Server{Log: logrus.NewEntry(logrus.New()), timeouts: defaultTimeouts, large: newLargeMessages()}
	near, far := net.Pipe()
	defer far.Close()
	codec := newCodec(&connection{ctx: t.Context(), server: server}, near, bufio.NewReader(near), func() {})
	go func() {
		var message bytes.Buffer
		encoder := gob.NewEncoder(&message)
		for err := error(nil); err == nil; { // until the other end closes
			_ = encoder.Encode(rpc.Request{ServiceMethod: reportDataset, Seq: 7}) // a buffer takes all
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
			t.Fatalf("report %d of %d places: %v", i+1, most, err)
		}
	}
	codec.release(7)
	if err := read(); err != nil {
		t.Errorf("after one was answered: %v", err)
	}
	codec.releaseAll()
	if n := server.large.reports; n != 0 || len(server.large.hosts) != 0 {
		t.Errorf("%d are still counted for a connection that ended: %v", n, server.large.hosts)
	}
	near.Close()
}

// A message that has been arriving for too long loses its place to a newer one; one host does
// not take all places.
func TestArrivingMessagesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := newLargeMessages()
		begin := func(host string) (net.Conn, *arrival, error) {
			near, far := net.Pipe()
			t.Cleanup(func() { near.Close() })
			a, err := large.begin(host, near)
			return far, a, err
		}
		first, _, err := begin("a")
		if err != nil {
			t.Fatal(err)
		}
		for range maxArriving/2 - 1 {
			if _, _, err := begin("a"); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := begin("a"); !errors.Is(err, wire.ErrBusy) {
			t.Errorf("more of one host than its half: %v", err)
		}
		_, other, err := begin("b")
		if err != nil {
			t.Errorf("of another host: %v", err)
		}
		time.Sleep(staleAfter) // virtual
		if _, _, err := begin("a"); err != nil {
			t.Errorf("after %v: %v", staleAfter, err)
		}
		if _, err := first.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the connection of the oldest message: %v", err)
		}
		large.end(other)
		large.end(other)
		if n := large.arriving.Len(); n != maxArriving/2 || large.hosts["a"].arriving != n || len(large.hosts) != 1 {
			t.Errorf("%d messages are arriving, %v by host", n, large.hosts)
		}
	})
}
