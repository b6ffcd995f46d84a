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

// face serves the net/rpc face of a master, alone and with timeouts for tests.
func face(t testing.TB, m *master.Master, handshake, message, write time.Duration) (addr string) {
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

// connect opens a connection up to the first request.
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

// closedWithin waits for the end of a connection and returns what came before it.
func closedWithin(t testing.TB, conn net.Conn, patience time.Duration) []byte {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(patience))
	got, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is open after %v", patience)
	}
	return got
}

// request is the bytes of one call.
func request(t testing.TB, method string, body any) []byte {
	t.Helper()
	var b bytes.Buffer
	encoder := gob.NewEncoder(&b)
	if err := errors.Join(encoder.Encode(rpc.Request{ServiceMethod: wire.Service + "." + method, Seq: 1}), encoder.Encode(body)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// F60: messages that are none, or too long, end their own connection; memory is bounded, and
// others are served.
func TestMalformedMessages(t *testing.T) {
	r := serve(t, 5, master.Config{})
	whole := request(t, "GetTask", taskqueue.Task{})
	flip := func(i int) []byte {
		b := bytes.Clone(whole)
		b[i] ^= 0xff
		return b
	}
	messages := map[string][]byte{
		"noise":             bytes.Repeat([]byte{0x55, 0xaa, 0x13}, 100),
		"zeros":             make([]byte, 100),
		"four gigabytes":    {0xfb, 1, 0, 0, 0, 0},
		"a claim":           append([]byte{0xfd, 0x3f, 0xff, 0xff}, whole...),
		"another protocol":  []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"a long header":     request(t, strings.Repeat("x", wire.MaxShortMessage), 1),
		"a long next":       request(t, "Next", wire.NextRequest{Seq: 1, Finished: make([]taskqueue.Result, wire.MaxShortMessage)}),
		"a long heartbeat":  request(t, "Heartbeat", wire.HeartbeatRequest{Moving: make([]taskqueue.Token, wire.MaxShortMessage)}),
		"a long report":     request(t, "ReportDataset", []string{strings.Repeat("x", wire.MaxMessage)}),
		"the end, too soon": whole[:len(whole)-3],
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
		t.Errorf("a bad message took %d bytes of memory, in the mean of %d", each, len(messages))
	}
	if task := take(t, dial(t, r.Addr), taskqueue.Task{}); len(task.Chunks) != 1 {
		t.Errorf("a right client got %+v", task)
	}
}

// A message of the allowed length cannot take much more memory than it has bytes, whatever
// it describes.
func TestMessagesThatSwell(t *testing.T) {
	r := serve(t, 5, master.Config{})
	const fits = wire.MaxMessage/3 - 1000 // each takes three bytes, or one
	for name, tt := range map[string]struct {
		method string
		body   any
		most   uint64 // for each byte of the message
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
				t.Errorf("no answer: %v", err)
			}
			runtime.ReadMemStats(&after)
			t.Logf("%d bytes took %d of memory, a task of as many chunks has %d", len(data), after.TotalAlloc-before.TotalAlloc, fits*72)
			if took := after.TotalAlloc - before.TotalAlloc; took > tt.most*uint64(len(data)) {
				t.Errorf("a message of %d bytes took %d of memory", len(data), took)
			}
		})
	}
}

// A value nested a million times ends its connection, not the process.
func TestMessageThatNests(t *testing.T) {
	type nest []nest
	type task struct {
		Index int
		Extra nest // gob skips what the receiver does not have, nested as it is
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

// F64: who is slow at the handshake, or in the middle of a message, is not waited for; who
// says nothing between two messages is.
func TestSlowConnections(t *testing.T) {
	r := serve(t, 5, master.Config{})
	const quick = 200 * time.Millisecond
	addr := face(t, r.Master, quick, quick, quick)
	for name, say := range map[string]func(t *testing.T) net.Conn{
		"says nothing": func(t *testing.T) net.Conn {
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
					time.Sleep(quick / 10)
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
	t.Run("thinks between two messages", func(t *testing.T) {
		c := dial(t, addr)
		task := take(t, c, taskqueue.Task{})
		time.Sleep(3 * quick) // the task's work
		if next := take(t, c, task); next.Token.Position != task.Token.Position+1 {
			t.Errorf("got %v", next.Token)
		}
	})
}

// F64: large messages that stall take nothing from others: a large report is taken after a few
// repeats, and the heartbeat behind it on the same connection does not wait.
func TestStalledLargeMessagesDelayNoOther(t *testing.T) {
	r := serve(t, 5, master.Config{})
	addr := face(t, r.Master, time.Hour, time.Hour, time.Hour)
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
			t.Fatal("no answer within 30 s: other messages are waited for")
		}
		return nil
	}
	mastertest.Eventually(t, "a large report is taken", func() bool {
		report := c.Go("RPCServer.ReportDataset", []string{strings.Repeat("/", 70<<10)}, new(int), nil)
		beat := c.Go("RPCServer.Heartbeat", wire.HeartbeatRequest{Trainer: joined.Trainer}, new(int), nil)
		if err := answered(beat); err != nil {
			t.Fatal(err)
		}
		err := answered(report)
		if err == nil || errors.Is(err, rpc.ErrShutdown) {
			t.Fatalf("the report of a path that is too long: %v", err)
		}
		return !errors.Is(wire.Error(err), wire.ErrNotStored)
	})
}

// F64: the length in front of a message takes no place: large reports are taken at once, however
// many connections say that a large message will come.
func TestLengthsOfLargeMessagesTakeNoPlace(t *testing.T) {
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
			t.Fatalf("the report of a path that is too long: %v", err)
		}
	}
}

// F64: a connection that has no session and no request under way is closed after the idle
// limit; others stay.
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
	// session makes a first call, again on another connection if the machine is so busy that the idle limit was over before it.
	session := func(method string, args, reply any) *rpc.Client {
		for range 20 {
			c := dial(t, addr)
			err := c.Call(method, args, reply)
			if err == nil {
				return c
			}
			t.Logf("%s: %v", method, err)
		}
		t.Fatalf("%s: no answer", method)
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
		t.Errorf("a connection with a task got %v", next.Token)
	}
	if err := joined.Call("RPCServer.Heartbeat", wire.HeartbeatRequest{Trainer: who.Trainer}, new(int)); err != nil {
		t.Errorf("a connection with a session: %v", err)
	}
}

// F64: a request for a session that the master cannot check, here because it does not lead, does not exempt its connection from the idle
// limit.
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
		t.Error("the request was not answered")
	}
}

// Another method or path than rpc.DialHTTP's is told so.
func TestOtherHTTP(t *testing.T) {
	addr := face(t, nil, time.Second, time.Second, time.Second)
	for _, line := range []string{"CONNECT /elsewhere HTTP/1.0", "POST /_goRPC_ HTTP/1.1", "GET / HTTP/1.1"} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, line+"\r\nHost: x\r\n\r\n")
		if got := string(closedWithin(t, conn, 10*time.Second)); !strings.HasPrefix(got, "HTTP/1.0 405 must CONNECT") {
			t.Errorf("%s was answered %q", line, got)
		}
		conn.Close()
	}
}

// F17: a call that panics is that call's error; the connection and the process go on.
func TestPanickingCall(t *testing.T) {
	c := dial(t, face(t, nil, time.Second, time.Second, time.Second)) // without a master every method panics
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

// A connection has sixteen unanswered requests; more are not even read.
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
	other := dial(t, r.Addr) // is served meanwhile
	if err := other.Call("RPCServer.Heartbeat", wire.HeartbeatRequest{Trainer: wire.Trainer{Ordinal: a.Ordinal, Incarnation: a.Incarnation}}, new(int)); err != nil {
		t.Error(err)
	}
	if more := runtime.NumGoroutine() - before; more > 60 {
		t.Errorf("%d requests of one connection take %d goroutines", n, more)
	}
	c.Close()
	for range n {
		if call := <-calls; call.Error == nil {
			t.Error("an answer without a task, before its time")
		}
	}
}

// F64: two thousand connections that say nothing take little, and are all served.
func TestIdleConnections(t *testing.T) {
	const n = 2000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < 2*n+200 {
		if os.Getenv("REQUIRE") == "all" {
			t.Fatalf("%d open files are allowed, want %d: ulimit -n", limit.Cur, 2*n+200)
		}
		t.Skipf("%d open files are allowed, the test needs %d: ulimit -n", limit.Cur, 2*n+200)
	}
	addr := face(t, nil, 10*time.Second, 10*time.Second, 10*time.Second) // every call is answered by an error
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
		t.Errorf("an idle connection takes %d bytes, want 64 KiB at most", each)
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

// What the master says, clients understand; nothing else is taken for it.
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
		"went back in time":   {master.ErrRolledBack, nil},
		"too many held tasks": {taskqueue.ErrTooManyHeld, nil},
		"too many sessions":   {taskqueue.ErrTooManySessions, wire.ErrNotStored},
		"a surprise":          {errors.New("a surprise"), nil},
		"nothing":             {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			said := netrpc.Words(tt.err)
			if (said == nil) != (tt.err == nil) || !errors.Is(said, tt.err) {
				t.Fatalf("%v became %v", tt.err, said)
			}
			if said == nil {
				return
			}
			heard := wire.Error(rpc.ServerError(said.Error()))
			for _, kind := range []error{wire.ErrNotLeader, wire.ErrNotStored, wire.ErrJobFinished, wire.ErrJobFailed, wire.ErrRejoin, wire.ErrOtherDataset} {
				if errors.Is(heard, kind) != (kind == tt.kind) {
					t.Errorf("%q is heard as %v: %v", said, kind, kind != tt.kind)
				}
			}
			if !strings.Contains(heard.Error(), tt.err.Error()) {
				t.Errorf("%q lost its reason: %q", tt.err, heard)
			}
		})
	}
}

// A server that stops closes what is open and waits for it.
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
		mastertest.Eventually(t, "the request is read", func() bool {
			return c.Call("RPCServer.Heartbeat", wire.HeartbeatRequest{}, new(int)) != nil
		})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if <-waits.Done; waits.Error == nil {
			t.Error("who waited got an answer")
		}
		closedWithin(t, idle, 5*time.Second)
		return listener.Addr().String()
	}()
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("the port is open")
	}
}
