package grpcserver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // of the client
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"trainmaster/internal/largemsg"
)

// holder is a service whose calls wait until they are released.
type holder struct {
	calls   chan string
	release chan struct{}
	end     func() // releases all calls
}

func (h *holder) method(name string) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.BytesValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: name}, func(context.Context, any) (any, error) {
			h.calls <- name
			<-h.release
			return &emptypb.Empty{}, nil
		})
	}}
}

// serveHolder serves the methods Short, Report and Result.
func serveHolder(t *testing.T) (h *holder, addr string) {
	t.Helper()
	h = &holder{calls: make(chan string, 100), release: make(chan struct{})}
	h.end = sync.OnceFunc(func() { close(h.release) })
	log := logrus.New()
	log.SetOutput(io.Discard)
	server := New(Config{Table: Common, Log: logrus.NewEntry(log), Large: map[string]Large{"/test/Report": LargeReport, "/test/Result": LargeResult}})
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "test", Methods: []grpc.MethodDesc{h.method("Short"), h.method("Report"), h.method("Result")}}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, l, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(h.end) // the end of the server waits for calls
	return h, l.Addr().String()
}

func (h *holder) awaitCalls(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-h.calls:
		case <-time.After(time.Minute):
			t.Fatalf("expected %d calls in progress", n)
		}
	}
}

// caller returns a function that begins a call with a message of a number of bytes.
func caller(t *testing.T, addr string, options ...grpc.CallOption) func(method string, bytes int) <-chan error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return func(method string, bytes int) <-chan error {
		ended := make(chan error, 1)
		go func() {
			ended <- conn.Invoke(context.Background(), "/test/"+method, wrapperspb.Bytes(make([]byte, bytes)), new(emptypb.Empty), options...)
		}()
		return ended
	}
}

// F232: messages of more than 64 KiB are accepted by the methods that need them only. A large report is refused while its host has the places
// of reports, and a large result waits for a place. Short messages do not wait.
func TestLargeMessagesTakePlaces(t *testing.T) {
	const large = 100 << 10
	h, addr := serveHolder(t)
	call := caller(t, addr)
	for method, want := range map[string]string{"Short": "TOO_LARGE", "Report": "", "Result": ""} {
		if err := <-call(method, MaxMessage); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s with more than 4 MiB: %v", method, err)
		}
		if want == "" {
			continue
		}
		if err := <-call(method, large); status.Code(err) != codes.ResourceExhausted || Reason(err) != want {
			t.Errorf("%s with %d bytes: %v, expected the reason %s", method, large, err, want)
		}
	}
	var ended []<-chan error
	for range largemsg.MaxReports / 2 {
		ended = append(ended, call("Report", large))
	}
	h.awaitCalls(t, len(ended))
	select {
	case err := <-call("Report", large):
		if Reason(err) != "TOO_MANY_LARGE_MESSAGES" {
			t.Errorf("one report more: %v", err)
		}
	case <-h.calls:
		t.Error("one report more: expected a refusal, found a call in progress")
	}
	for range largemsg.MaxResults {
		ended = append(ended, call("Result", large))
	}
	h.awaitCalls(t, largemsg.MaxResults)
	waiting := call("Result", large)
	answered := make(chan error, largemsg.MaxWaiting/MaxMessage)
	for range cap(answered) { // with the results in progress, one is too many
		go func() { answered <- <-call("Result", MaxMessage-100) }()
	}
	select {
	case err := <-answered:
		if Reason(err) != "TOO_MANY_LARGE_MESSAGES" {
			t.Errorf("results of more than %d bytes: expected a refusal, found %v", largemsg.MaxWaiting, err)
		}
	case <-time.After(30 * time.Second): // a refusal comes in less than a second
		t.Fatalf("results of more than %d bytes wait, expected a refusal", largemsg.MaxWaiting)
	}
	ended = append(ended, call("Short", 100), call("Report", 100), call("Result", 100))
	h.awaitCalls(t, 3)
	select {
	case name := <-h.calls:
		t.Errorf("%s: expected the last large result to wait for a place", name)
	case <-time.After(200 * time.Millisecond): // a call would begin within this time
	}
	h.end()
	for _, e := range append(ended, waiting) {
		if err := <-e; err != nil {
			t.Error(err)
		}
	}
	for range cap(answered) - 1 {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
}

// unfinished is the body of a request that announces a message and sends a part of it.
type unfinished struct {
	left   int
	sent   *atomic.Int64
	all    *sync.WaitGroup // waits until the part is sent
	once   sync.Once
	stop   <-chan struct{}
	closed chan struct{} // by the transport
	ended  sync.Once
}

func newUnfinished(part int, sent *atomic.Int64, all *sync.WaitGroup, stop <-chan struct{}) *unfinished {
	all.Add(1)
	return &unfinished{left: part, sent: sent, all: all, stop: stop, closed: make(chan struct{})}
}

func (u *unfinished) Read(p []byte) (int, error) {
	if u.left == 0 {
		u.once.Do(u.all.Done)
		select {
		case <-u.stop:
		case <-u.closed:
		}
		return 0, io.EOF
	}
	n := min(len(p), u.left)
	clear(p[:n])
	if u.sent.Load() == 0 && n >= 5 {
		binary.BigEndian.PutUint32(p[1:], MaxMessage)
	}
	u.left -= n
	u.sent.Add(int64(n))
	return n, nil
}

func (u *unfinished) Close() error {
	u.once.Do(u.all.Done)
	u.ended.Do(func() { close(u.closed) })
	return nil
}

// F232: the incomplete messages of all connections share 64 MiB. A connection that exceeds them ends, and other clients continue. A message
// without progress for a second gives its memory to others.
func TestArrivingMessagesShareMemoryOverGRPC(t *testing.T) {
	const conns, streams, part = 4, 8, 3 << 20 // 96 MiB in all
	h, addr := serveHolder(t)
	h.end()
	stop := make(chan struct{})
	var all, requests sync.WaitGroup
	var sent [conns][streams]atomic.Int64
	var failed [conns]atomic.Bool
	for c := range conns {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		for s := range streams {
			body := newUnfinished(part, &sent[c][s], &all, stop)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/test/Result", body)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", "application/grpc")
			request.Header.Set("TE", "trailers")
			requests.Go(func() {
				reply, err := transport.RoundTrip(request)
				if err != nil {
					failed[c].Store(true)
					return
				}
				reply.Body.Close()
			})
		}
		// One connection after the other: the bytes of all messages make progress at the same time otherwise, and none is the oldest.
		all.Wait()
	}
	const most = largemsg.MaxArriving + conns*streams*(64<<10)
	deadline := time.Now().Add(10 * time.Second)
	for {
		kept := int64(0) // on connections that have not failed: the client learns it late
		for c := range conns {
			for s := range streams {
				if !failed[c].Load() {
					kept += sent[c][s].Load()
				}
			}
		}
		if kept <= most {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("bytes of incomplete messages: found %d, expected at most %d", kept, most)
		}
		time.Sleep(10 * time.Millisecond) // only the client can be observed
	}
	call := caller(t, addr)
	if err := <-call("Short", 100); err != nil {
		t.Errorf("another client: %v", err)
	}
	time.Sleep(1200 * time.Millisecond) // until the messages are without progress for a second
	if err := <-call("Result", MaxMessage-100); err != nil {
		t.Errorf("a large message after a second: %v", err)
	}
	close(stop)
	requests.Wait()
}

// The sizes of messages are found in any division of the bytes into frames, with padding, and into reads.
func TestArrivingBytesAreCountedExactly(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	frame := func(kind, flags byte, stream uint32, payload []byte) []byte {
		head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
		return append(binary.BigEndian.AppendUint32(head, stream), payload...)
	}
	for range 50 {
		large := largemsg.New()
		near, far := net.Pipe()
		c := &conn{Conn: near, large: large, host: "a", streams: map[uint32]*arriving{}, in: frames{skip: prefaceSize}}
		bytes := make([]byte, prefaceSize)
		for id := uint32(1); id < 40; id += 2 {
			bytes = append(bytes, frame(frameHeaders, 0, id, make([]byte, r.IntN(50)))...)
			var messages []byte
			for range r.IntN(4) {
				size := r.IntN(20_000)
				messages = append(binary.BigEndian.AppendUint32(append(messages, 0), uint32(size)), make([]byte, size)...)
			}
			for len(messages) > 0 {
				n := min(len(messages), 1+r.IntN(16_000))
				payload, flags := messages[:n:n], byte(0)
				if r.IntN(3) == 0 {
					padding := r.IntN(200)
					payload, flags = append(append([]byte{byte(padding)}, payload...), make([]byte, padding)...), flagPadded
				}
				bytes = append(bytes, frame(frameData, flags, id, payload)...)
				messages = messages[n:]
			}
			if id%3 != 0 { // the others stay open, between two messages
				bytes = append(bytes, frame(frameData, flagEndStream, id, nil)...)
			}
		}
		// An incomplete message of 10,000 bytes, of which 7,000 arrive.
		bytes = append(bytes, frame(frameHeaders, 0, 41, nil)...)
		bytes = append(bytes, frame(frameData, 0, 41, append(binary.BigEndian.AppendUint32([]byte{0}, 10_000), make([]byte, 7_000)...))...)
		go func() {
			_, _ = far.Write(bytes) // net.Pipe reports what is read
			far.Close()
		}()
		for {
			if _, err := c.Read(make([]byte, 1+r.IntN(5_000))); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if n := large.Arriving(); n != 7_000 {
			t.Fatalf("bytes of incomplete messages: found %d, expected 7000", n)
		}
		go func() { _, _ = io.Copy(io.Discard, far) }()
		_, _ = c.Write(frame(frameReset, 0, 41, make([]byte, 4))) // the other end is closed
		if n := large.Arriving(); n != 0 {
			t.Fatalf("after the end of the stream: found %d bytes, expected none", n)
		}
		c.Close()
	}
}

// A compressed message is limited by its decompressed size: it is refused before it is decoded.
func TestCompressedMessagesHaveTheSameLimits(t *testing.T) {
	h, addr := serveHolder(t)
	h.end()
	call := caller(t, addr, grpc.UseCompressor("gzip"))
	for bytes, want := range map[int]codes.Code{1000: codes.OK, 100 << 10: codes.ResourceExhausted, 6 << 20: codes.ResourceExhausted} {
		if err := <-call("Short", bytes); status.Code(err) != want {
			t.Errorf("%d bytes: found %v, expected %v", bytes, err, want)
		}
	}
}
