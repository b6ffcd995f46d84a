package netrpc

import (
	"bufio"
	"bytes"
	"encoding/gob"
	"errors"
	"net"
	"net/rpc"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"trainmaster/internal/largemsg"
	"trainmaster/master/netrpc/wire"
)

// Large reports in memory are counted, also if a client uses one number for all of them. A report beyond the limit is
// refused, and the stream continues.
func TestLargeReportsOfOneNumber(t *testing.T) {
	const most = largemsg.MaxReports / 2 // limit of one host
	server := &Server{Log: logrus.NewEntry(logrus.New()), timeouts: defaultTimeouts, large: largemsg.New(), turns: newTurns()}
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
	for i := range most {
		if !server.large.TakeReport(codec.host) {
			t.Errorf("after the end of the connection: expected %d places, found %d", most, i)
		}
	}
	near.Close()
}
