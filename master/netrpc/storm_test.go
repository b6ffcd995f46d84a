package netrpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"io"
	"net"
	"net/http"
	"net/rpc"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/sirupsen/logrus"

	"trainmaster/master"
	"trainmaster/master/netrpc/wire"
)

// F32: a thousand trainers send their first request at the same time. The goroutines that renew the lease and commit
// run between any few requests, and not after all of them. Otherwise the leader could lose the lock on a slow
// machine, and all trainers would connect again.
func TestFirstRequestsLeaveProcessorsToOthers(t *testing.T) {
	const trainers = 400
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	idle, err := master.New(master.Config{}) // it does not run
	if err != nil {
		t.Fatal(err)
	}
	server := &Server{Master: idle, Log: logrus.NewEntry(log)} // it does not lead, and answers with that
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	var writes atomic.Int64
	go func() { served <- server.Serve(ctx, countingListener{listener, &writes}) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	var request bytes.Buffer
	encoder := gob.NewEncoder(&request)
	for _, part := range []any{rpc.Request{ServiceMethod: wire.Service + ".Heartbeat", Seq: 1}, wire.HeartbeatRequest{}} {
		if err := encoder.Encode(part); err != nil {
			t.Fatal(err)
		}
	}
	conns := make([]net.Conn, trainers)
	for i := range conns {
		if conns[i], err = net.Dial("tcp", listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
		if _, err := io.WriteString(conns[i], "CONNECT "+rpc.DefaultRPCPath+" HTTP/1.0\n\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := http.ReadResponse(bufio.NewReader(conns[i]), nil); err != nil {
			t.Fatal(err)
		}
	}
	writes.Store(0)
	others := make(chan int64)
	go func() {
		most := int64(0)
		for last := int64(0); last < trainers; {
			runtime.Gosched()
			now := writes.Load()
			most, last = max(most, now-last), now
		}
		others <- most
	}()
	for _, conn := range conns {
		if _, err := conn.Write(request.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	if most := <-others; most > trainers/10 {
		t.Errorf("requests between two runs of another goroutine: found %d, expected at most %d", most, trainers/10)
	}
}

// countingListener counts the writes to its connections.
type countingListener struct {
	net.Listener
	writes *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return countingConn{conn, l.writes}, err
}

type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}
