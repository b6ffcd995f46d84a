package netrpc_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/rpc"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/master/netrpc"
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// listen serves the net/rpc API of a master with timeouts for tests.
func listen(t testing.TB, m *master.Master, handshake, message, write time.Duration) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	logger, _ := logtest.NewNullLogger()
	server := &netrpc.Server{Master: m, Log: logrus.NewEntry(logger)}
	server.SetTimeouts(handshake, message, write)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// connect opens a connection that is ready for its first request.
func connect(t testing.TB, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "CONNECT "+rpc.DefaultRPCPath+" HTTP/1.0\n\n"); err != nil {
		t.Fatal(err)
	}
	if response, err := http.ReadResponse(bufio.NewReaderSize(io.LimitReader(conn, 34), 64), nil); err != nil || response.StatusCode != http.StatusOK {
		t.Fatal(response, err)
	}
	return conn
}

// closedWithin waits for the end of a connection and returns the bytes before it.
func closedWithin(t testing.TB, conn net.Conn, patience time.Duration) []byte {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(patience))
	got, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connection: expected its end within %v", patience)
	}
	return got
}

// request encodes one call.
func request(t testing.TB, method string, body any) []byte {
	t.Helper()
	var b bytes.Buffer
	encoder := gob.NewEncoder(&b)
	if err := errors.Join(encoder.Encode(rpc.Request{ServiceMethod: wire.Service + "." + method, Seq: 1}), encoder.Encode(body)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// F60: malformed and too long messages end their own connection. Memory is bounded, and other clients are served.
func TestMalformedMessages(t *testing.T) {
	r := serve(t, 5, master.Config{})
	whole := request(t, "GetTask", taskqueue.Task{})
	flip := func(i int) []byte {
		b := bytes.Clone(whole)
		b[i] ^= 0xff
		return b
	}
	messages := map[string][]byte{
		"noise":            bytes.Repeat([]byte{0x55, 0xaa, 0x13}, 100),
		"zeros":            make([]byte, 100),
		"four gigabytes":   {0xfb, 1, 0, 0, 0, 0},
		"a claim":          append([]byte{0xfd, 0x3f, 0xff, 0xff}, whole...),
		"another protocol": []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"a long header":    request(t, strings.Repeat("x", wire.MaxShortMessage), 1),
		"a long next":      request(t, "Next", wire.NextRequest{Seq: 1, Finished: make([]taskqueue.Result, wire.MaxShortMessage)}),
		"a long heartbeat": request(t, "Heartbeat", wire.HeartbeatRequest{Moving: make([]taskqueue.Token, wire.MaxShortMessage)}),
		"a long report":    request(t, "ReportDataset", []string{strings.Repeat("x", wire.MaxMessage)}),
		"truncated":        whole[:len(whole)-3],
	}
	for i := range whole {
		messages[fmt.Sprint("byte ", i, " flipped")] = flip(i)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for name, data := range messages {
		conn := connect(t, r.Addr)
		if _, err := conn.Write(data); err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%s: %v", name, err)
		}
		conn.(*net.TCPConn).CloseWrite()
		closedWithin(t, conn, 20*time.Second)
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / uint64(len(messages)); each > 256<<10 {
		t.Errorf("invalid message: found %d bytes of memory, as the mean of %d", each, len(messages))
	}
	if task := take(t, dial(t, r.Addr), taskqueue.Task{}); len(task.Chunks) != 1 {
		t.Errorf("valid client: got %+v", task)
	}
}

// A message of the allowed length allocates little more memory than its length, for any content.
func TestMessageMemoryIsBounded(t *testing.T) {
	r := serve(t, 5, master.Config{})
	const fits = wire.MaxMessage/3 - 1000 // each takes three bytes, or one
	for name, tt := range map[string]struct {
		method string
		body   any
		most   uint64 // per byte of the message
	}{
		"chunks of nothing": {"GetTask", taskqueue.Task{Index: 1, Chunks: make([]taskqueue.Chunk, fits)}, 20},
		"empty names":       {"ReportDataset", make([]string, fits), 90},
	} {
		t.Run(name, func(t *testing.T) {
			data := request(t, tt.method, tt.body)
			conn := connect(t, r.Addr)
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := conn.Write(data); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 10)); err != nil {
				t.Errorf("answer: got %v", err)
			}
			runtime.ReadMemStats(&after)
			t.Logf("message of %d bytes: %d bytes of memory, %d for a task of as many chunks", len(data), after.TotalAlloc-before.TotalAlloc, fits*72)
			if took := after.TotalAlloc - before.TotalAlloc; took > tt.most*uint64(len(data)) {
				t.Errorf("message of %d bytes: found %d bytes of memory", len(data), took)
			}
		})
	}
}

// A value that is nested a million times ends its connection, not the process.
func TestNestedMessageEndsConnection(t *testing.T) {
	type nest []nest
	type task struct {
		Index int
		Extra nest // gob skips fields that the receiver does not have, with their nesting
	}
	r := serve(t, 5, master.Config{})
	conn := connect(t, r.Addr)
	if _, err := conn.Write(request(t, "GetTask", task{1, nest{nest{}}})); err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(conn); err != nil || !strings.Contains(string(said), "recursive type") {
		t.Errorf("read %q, %v; expected the reason and the end of the connection", said, err)
	}
}

// F64: a connection that is slow in the handshake or within a message is closed. A connection that is idle between
// two messages is not.
func TestSlowConnections(t *testing.T) {
	r := serve(t, 5, master.Config{})
	const quick = 200 * time.Millisecond
	addr := listen(t, r.Master, quick, quick, quick)
	for name, say := range map[string]func(t *testing.T) net.Conn{
		"sends nothing": func(t *testing.T) net.Conn {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			return conn
		},
		"half a handshake": func(t *testing.T) net.Conn {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(conn, "CONNECT /_goRPC_ HT")
			return conn
		},
		"half a message": func(t *testing.T) net.Conn {
			conn := connect(t, addr)
			_, _ = conn.Write(request(t, "GetTask", taskqueue.Task{})[:40])
			return conn
		},
		"half a large message": func(t *testing.T) net.Conn {
			conn := connect(t, addr)
			_, _ = conn.Write(request(t, "ReportDataset", make([]string, 1<<20))[:2<<16])
			return conn
		},
		"a message, byte by byte": func(t *testing.T) net.Conn {
			conn := connect(t, addr)
			go func() {
				for _, b := range request(t, "ReportDataset", []string{strings.Repeat("x", 4000)}) {
					if _, err := conn.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(quick / 10) // slower than the limit of a message
				}
			}()
			return conn
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := say(t)
			defer conn.Close()
			closedWithin(t, conn, 50*quick)
		})
	}
	t.Run("an endless handshake", func(t *testing.T) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "CONNECT /_goRPC_ HTTP/1.0\nX: "+strings.Repeat("x", 20<<10))
		closedWithin(t, conn, 50*quick)
	})
	t.Run("idle between two messages", func(t *testing.T) {
		c := dial(t, addr)
		task := take(t, c, taskqueue.Task{})
		time.Sleep(3 * quick) // longer than the limit of a message, as during the work on a task
		if next := take(t, c, task); next.Token.Position != task.Token.Position+1 {
			t.Errorf("got %v", next.Token)
		}
	})
}

// F64: stalled large messages do not delay others. A large report is accepted after a few repeats, and a heartbeat
// after it on the same connection does not wait.
func TestStalledLargeMessagesDoNotDelayOthers(t *testing.T) {
	r := serve(t, 5, master.Config{})
	addr := listen(t, r.Master, time.Hour, time.Hour, time.Hour)
	large := request(t, "ReportDataset", []string{strings.Repeat("x", 100<<10)})
	for range 20 {
		if _, err := connect(t, addr).Write(large[:80<<10]); err != nil {
			t.Fatal(err)
		}
	}
	c := dial(t, addr)
	var joined wire.JoinReply
	if err := c.Call("RPCServer.Join", wire.JoinRequest{ID: "sound"}, &joined); err != nil {
		t.Fatal(err)
	}
	answered := func(call *rpc.Call) error {
		t.Helper()
		select {
		case <-call.Done:
			return call.Error
		case <-time.After(30 * time.Second):
			t.Fatal("expected an answer within 30 s: it waits for other messages")
		}
		return nil
	}
	mastertest.Eventually(t, "an accepted large report", func() bool {
		report := c.Go("RPCServer.ReportDataset", []string{strings.Repeat("/", 70<<10)}, new(int), nil)
		beat := c.Go("RPCServer.Heartbeat", wire.HeartbeatRequest{Trainer: joined.Trainer}, new(int), nil)
		if err := answered(beat); err != nil {
			t.Fatal(err)
		}
		err := answered(report)
		if err == nil || errors.Is(err, rpc.ErrShutdown) {
			t.Fatalf("report of a too long path: got %v", err)
		}
		return !errors.Is(wire.Error(err), wire.ErrNotStored)
	})
}

// F64: the declared length of a message reserves no memory. Large reports are accepted immediately, for any number of
// connections that declare large messages.
func TestDeclaredLengthReservesNoMemory(t *testing.T) {
	r := serve(t, 5, master.Config{})
	large := request(t, "ReportDataset", []string{strings.Repeat("x", 100<<10)})
	c := dial(t, r.Addr)
	for range 5 {
		for range 20 {
			if _, err := connect(t, r.Addr).Write(large[:len(large)-100<<10]); err != nil {
				t.Fatal(err)
			}
		}
		err := c.Call("RPCServer.ReportDataset", []string{strings.Repeat("/", 70<<10)}, new(int))
		if err == nil || errors.Is(err, rpc.ErrShutdown) || errors.Is(wire.Error(err), wire.ErrNotStored) {
			t.Fatalf("report of a too long path: got %v", err)
		}
	}
}

// F64: a connection without a session and without a request is closed after the idle limit. Others remain.
func TestIdleConnectionsWithoutASessionAreClosed(t *testing.T) {
	r := serve(t, 5, master.Config{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	logger, _ := logtest.NewNullLogger()
	server := &netrpc.Server{Master: r.Master, Log: logrus.NewEntry(logger)}
	server.SetIdle(500 * time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	addr := listener.Addr().String()
	// session makes the first call of a connection. On a busy machine the idle limit can close the connection first;
	// session then uses another connection.
	session := func(method string, args, reply any) *rpc.Client {
		for range 20 {
			c := dial(t, addr)
			err := c.Call(method, args, reply)
			if err == nil {
				return c
			}
			t.Logf("%s: %v", method, err)
		}
		t.Fatalf("%s: expected an answer", method)
		return nil
	}
	var task taskqueue.Task
	plain := session("RPCServer.GetTask", &taskqueue.Task{}, &task)
	var who wire.JoinReply
	joined := session("RPCServer.Join", wire.JoinRequest{ID: "a"}, &who)
	silent, asked := connect(t, addr), connect(t, addr)
	if _, err := asked.Write(request(t, "Heartbeat", wire.HeartbeatRequest{})); err != nil {
		t.Fatal(err)
	}
	closedWithin(t, silent, 30*time.Second)
	closedWithin(t, asked, 30*time.Second)
	if next := take(t, plain, task); next.Token.Position != task.Token.Position+1 {
		t.Errorf("connection with a task: got %v", next.Token)
	}
	if err := joined.Call("RPCServer.Heartbeat", wire.HeartbeatRequest{Trainer: who.Trainer}, new(int)); err != nil {
		t.Errorf("connection with a session: got %v", err)
	}
}

// F64: a request with a session that the master cannot verify, because it does not lead, does not exempt its
// connection from the idle limit.
func TestConnectionWithForgedSessionIsClosed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	logger, _ := logtest.NewNullLogger()
	idle, err := master.New(master.Config{}) // it does not run
	if err != nil {
		t.Fatal(err)
	}
	server := &netrpc.Server{Master: idle, Log: logrus.NewEntry(logger)}
	server.SetIdle(500 * time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	forged := connect(t, listener.Addr().String())
	if _, err := forged.Write(request(t, "Heartbeat", wire.HeartbeatRequest{Trainer: wire.Trainer{Ordinal: 1, Incarnation: 1}})); err != nil {
		t.Fatal(err)
	}
	if got := closedWithin(t, forged, 30*time.Second); len(got) == 0 {
		t.Error("request: expected an answer")
	}
}

// A request with another method or path than rpc.DialHTTP receives an HTTP error.
func TestOtherHTTPRequestsAreRefused(t *testing.T) {
	addr := listen(t, nil, time.Second, time.Second, time.Second)
	for _, line := range []string{"CONNECT /elsewhere HTTP/1.0", "POST /_goRPC_ HTTP/1.1", "GET / HTTP/1.1"} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, line+"\r\nHost: x\r\n\r\n")
		if got := string(closedWithin(t, conn, 10*time.Second)); !strings.HasPrefix(got, "HTTP/1.0 405 must CONNECT") {
			t.Errorf("%s: got %q", line, got)
		}
		conn.Close()
	}
}

// F17: a panic is the error of its call. The connection and the process continue.
func TestPanickingCall(t *testing.T) {
	c := dial(t, listen(t, nil, time.Second, time.Second, time.Second)) // every method panics without a master
	who := wire.Trainer{Ordinal: 1, Incarnation: 1}
	for method, x := range map[string]struct{ args, reply any }{
		"ReportDataset":    {[]string{"/a"}, new(int)},
		"GetTask":          {taskqueue.Task{}, new(taskqueue.Task)},
		"Join":             {wire.JoinRequest{ID: "a"}, new(wire.JoinReply)},
		"Next":             {wire.NextRequest{Trainer: who, Seq: 1}, new(wire.NextReply)},
		"TaskFailed":       {wire.TaskFailedRequest{Trainer: who}, new(int)},
		"Heartbeat":        {wire.HeartbeatRequest{Trainer: who}, new(int)},
		"Leave":            {wire.LeaveRequest{Trainer: who}, new(int)},
		"RequestSaveModel": {wire.SaveModelRequest{Trainer: who}, new(wire.SaveModelReply)},
		"Staged":           {wire.StagedRequest{Trainer: who}, new(wire.StagedReply)},
	} {
		if err := c.Call(wire.Service+"."+method, x.args, x.reply); err == nil || !strings.Contains(err.Error(), "internal error in "+method) {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// A connection has at most sixteen unanswered requests. Further requests are not read.
func TestUnansweredRequestsAreBounded(t *testing.T) {
	r := serve(t, 0, master.Config{})
	a := r.Join("a")
	c := dial(t, r.Addr)
	before := runtime.NumGoroutine()
	const n = 500
	calls := make(chan *rpc.Call, n)
	for i := range n {
		c.Go("RPCServer.Next", wire.NextRequest{Trainer: wire.Trainer{Ordinal: a.Ordinal, Incarnation: a.Incarnation}, Seq: uint64(i + 1), Ack: 1, Want: true}, new(wire.NextReply), calls)
	}
	other := dial(t, r.Addr) // another client is served
	if err := other.Call("RPCServer.Heartbeat", wire.HeartbeatRequest{Trainer: wire.Trainer{Ordinal: a.Ordinal, Incarnation: a.Incarnation}}, new(int)); err != nil {
		t.Error(err)
	}
	if more := runtime.NumGoroutine() - before; more > 60 {
		t.Errorf("%d requests of one connection: found %d goroutines", n, more)
	}
	c.Close()
	for range n {
		if call := <-calls; call.Error == nil {
			t.Error("expected no answer before the end of the long poll")
		}
	}
}

// F64: two thousand idle connections use little memory, and all are served.
func TestIdleConnections(t *testing.T) {
	const n = 2000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < 2*n+200 {
		if os.Getenv("REQUIRE") == "all" {
			t.Fatalf("open files: found a limit of %d, expected %d: set ulimit -n", limit.Cur, 2*n+200)
		}
		t.Skipf("open files: found a limit of %d, expected %d: set ulimit -n", limit.Cur, 2*n+200)
	}
	addr := listen(t, nil, 10*time.Second, 10*time.Second, 10*time.Second) // the answer of every call is an error
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := memory()
	conns := make([]net.Conn, n)
	for i := range conns {
		conns[i] = connect(t, addr)
	}
	each := (memory() - before) / n
	t.Logf("%d bytes for each idle connection", each)
	if each > 64<<10 {
		t.Errorf("idle connection: found %d bytes, expected at most 64 KiB", each)
	}
	call := request(t, "Heartbeat", wire.HeartbeatRequest{})
	for _, conn := range conns {
		if _, err := conn.Write(call); err != nil {
			t.Fatal(err)
		}
	}
	for i, conn := range conns {
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadFull(conn, make([]byte, 10)); err != nil {
			t.Fatalf("connection %d of %d: %v", i, n, err)
		}
		conn.Close()
	}
}

// Clients recognize the errors of the master, and no other errors.
func TestErrorWords(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		kind error
	}{
		"not the leader":      {master.ErrNotLeader, wire.ErrNotLeader},
		"fenced":              {fmt.Errorf("commit: %w", taskqueue.ErrFenced), wire.ErrNotLeader},
		"an unknown outcome":  {fmt.Errorf("commit: %w", taskqueue.ErrUnknownOutcome), wire.ErrNotLeader},
		"a full store":        {fmt.Errorf("%w: %w", master.ErrNotStored, taskqueue.ErrStoreFull), wire.ErrNotStored},
		"finished":            {fmt.Errorf("%w: all passes are done", master.ErrJobFinished), wire.ErrJobFinished},
		"failed":              {fmt.Errorf("%w: nothing was counted", master.ErrJobFailed), wire.ErrJobFailed},
		"no session":          {master.ErrRejoin, wire.ErrRejoin},
		"another dataset":     {fmt.Errorf("%w: 3 files more", taskqueue.ErrOtherDataset), wire.ErrOtherDataset},
		"rolled back":         {master.ErrStoreWentBack, nil},
		"too many held tasks": {taskqueue.ErrTooManyHeld, nil},
		"too many sessions":   {taskqueue.ErrTooManySessions, wire.ErrNotStored},
		"a surprise":          {errors.New("a surprise"), nil},
		"nothing":             {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			said := netrpc.Words(tt.err)
			if (said == nil) != (tt.err == nil) || !errors.Is(said, tt.err) {
				t.Fatalf("%v: encoded as %v", tt.err, said)
			}
			if said == nil {
				return
			}
			heard := wire.Error(rpc.ServerError(said.Error()))
			for _, kind := range []error{wire.ErrNotLeader, wire.ErrNotStored, wire.ErrJobFinished, wire.ErrJobFailed, wire.ErrRejoin, wire.ErrOtherDataset} {
				if errors.Is(heard, kind) != (kind == tt.kind) {
					t.Errorf("%q: recognized as %v: %v", said, kind, kind != tt.kind)
				}
			}
			if !strings.Contains(heard.Error(), tt.err.Error()) {
				t.Errorf("%q: expected its reason, found %q", tt.err, heard)
			}
		})
	}
}

// A server that stops closes its connections and waits for them.
func TestServeStops(t *testing.T) {
	r := serve(t, 0, master.Config{})
	addr := func() string {
		t.Helper()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		logger, _ := logtest.NewNullLogger()
		server := &netrpc.Server{Master: r.Master, Log: logrus.NewEntry(logger)}
		done := make(chan error, 1)
		go func() { done <- server.Serve(ctx, listener) }()
		c := dial(t, listener.Addr().String())
		waits := c.Go("RPCServer.GetTask", &taskqueue.Task{}, new(taskqueue.Task), nil)
		idle := connect(t, listener.Addr().String())
		mastertest.Eventually(t, "the request", func() bool {
			return c.Call("RPCServer.Heartbeat", wire.HeartbeatRequest{}, new(int)) != nil
		})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if <-waits.Done; waits.Error == nil {
			t.Error("waiting request: expected an error")
		}
		closedWithin(t, idle, 5*time.Second)
		return listener.Addr().String()
	}()
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("expected a closed port")
	}
}
