package netrpc

import (
	"bufio"
	"bytes"
	"encoding/gob"
	"net"
	"net/rpc"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/netrpc/wire"
)

// Large messages in memory are counted, also where a stranger gives all of them one number.
func TestLargeMessagesOfOneNumber(t *testing.T) {
	server := &Server{Log: logrus.NewEntry(logrus.New()), timeouts: defaultTimeouts, large: make(chan struct{}, maxLarge)}
	server.timeouts.message = 200 * time.Millisecond
	near, far := net.Pipe()
	defer far.Close()
	codec := newCodec(&connection{ctx: t.Context(), server: server}, near, bufio.NewReader(near), func() {})
	go func() {
		var message bytes.Buffer
		encoder := gob.NewEncoder(&message)
		for err := error(nil); err == nil; { // until the other end closes
			_ = encoder.Encode(rpc.Request{ServiceMethod: wire.Service + ".ReportDataset", Seq: 7}) // a buffer takes all
			_ = encoder.Encode([]string{strings.Repeat("x", 1<<20)})
			_, err = message.WriteTo(far)
		}
	}()
	taken := 0
	for ; ; taken++ {
		var request rpc.Request
		if err := codec.ReadRequestHeader(&request); err != nil {
			t.Fatal(err)
		}
		var names []string
		if err := codec.ReadRequestBody(&names); err != nil {
			break
		}
		if taken > maxLarge {
			t.Fatalf("%d large messages are in memory, expected at most %d", taken, maxLarge)
		}
	}
	if taken != maxLarge || len(server.large) != maxLarge {
		t.Errorf("%d were taken and %d are counted, expected %d", taken, len(server.large), maxLarge)
	}
	codec.releaseAll()
	if n := len(server.large); n != 0 {
		t.Errorf("%d are still counted for a connection that ended", n)
	}
	near.Close()
}
