package netrpc

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/rpc"
	"runtime"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/internal/largemsg"
	"trainmaster/master"
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// timeouts of a connection.
type timeouts struct {
	handshake time.Duration
	message   time.Duration // from a message's first byte to its last
	write     time.Duration
	idle      time.Duration // of a connection without a request under way and without a session
}

var defaultTimeouts = timeouts{handshake: 10 * time.Second, message: 30 * time.Second, write: 30 * time.Second, idle: 5 * time.Minute}

// Server serves net/rpc connections of one master.
type Server struct {
	Master *master.Master
	Log    *logrus.Entry

	timeouts timeouts // zero: the default ones; set by tests

	mu    sync.Mutex
	conns map[net.Conn]*connection // nil before the handshake
	done  bool
	wg    sync.WaitGroup
	large *largemsg.Messages

	// turns bounds the number of connections that are decoded at a time. Thousands of trainers that reach a new leader
	// together would occupy the processors for seconds. The leader could neither renew its lease nor commit, would lose
	// the lock, and all trainers would reconnect.
	turns chan struct{}
}

// turnsPerProcessor is more than one because what has a turn may still wait, for the collector for example.
const turnsPerProcessor = 2

func newTurns() chan struct{} { return make(chan struct{}, turnsPerProcessor*runtime.GOMAXPROCS(0)) }

// takeTurn waits for a turn. It yields then: the scheduler runs a goroutine that was just woken before all others.
func (s *Server) takeTurn() {
	s.turns <- struct{}{}
	runtime.Gosched()
}

func (s *Server) giveTurn() { <-s.turns }

// Serve takes connections until ctx ends, then closes them all and waits.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.large = largemsg.New()
	s.turns = newTurns()
	if s.timeouts == (timeouts{}) {
		s.timeouts = defaultTimeouts
	}
	stop := context.AfterFunc(ctx, func() {
		l.Close()
		s.closeAll()
	})
	defer stop()
	defer s.wg.Wait()
	serving, ended := context.WithCancel(ctx)
	defer ended()
	s.wg.Go(func() { s.closeIdle(serving) })
	if s.Master != nil { // nil: a test in which every call panics
		termDone := s.Master.TermDone()
		s.wg.Go(func() { s.closeWithTerm(serving, termDone) })
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept trainers: %w", err)
		}
		if s.add(conn) {
			s.wg.Go(func() {
				defer s.remove(conn)
				s.serve(ctx, conn)
			})
		}
	}
}

func (s *Server) add(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		conn.Close()
		return false
	}
	if s.conns == nil {
		s.conns = map[net.Conn]*connection{}
	}
	s.conns[conn] = nil
	return true
}

func (s *Server) remove(conn net.Conn) {
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

func (s *Server) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	for conn := range s.conns {
		conn.Close()
	}
}

// closeWithTerm closes all connections when a term ends, so that clients look for the next leader. over closes at the end of the
// current term.
func (s *Server) closeWithTerm(ctx context.Context, termDone <-chan struct{}) {
	for {
		select {
		case <-termDone:
		case <-ctx.Done():
			return
		}
		termDone = s.Master.TermDone()
		s.mu.Lock()
		for conn := range s.conns {
			conn.Close()
		}
		s.mu.Unlock()
	}
}

func (s *Server) serve(ctx context.Context, conn net.Conn) {
	bounded := &budget{r: conn, left: maxHandshake}
	r := bufio.NewReaderSize(bounded, 4096)
	if err := s.handshake(conn, r); err != nil {
		s.Log.WithError(err).WithField("peer", conn.RemoteAddr().String()).Warn("connection refused")
		return
	}
	bounded.left = math.MaxInt64
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &connection{since: time.Now(), ctx: ctx, server: s, peer: conn.RemoteAddr().String(), name: fmt.Sprintf("conn-%s-%d", conn.RemoteAddr(), time.Now().UnixNano())}
	defer c.closed()
	s.takeTurn()
	server := rpc.NewServer()
	err := server.RegisterName(wire.Service, c)
	s.giveTurn()
	if err != nil {
		s.Log.WithError(err).Error("register the service")
		return
	}
	s.mu.Lock()
	s.conns[conn] = c
	s.mu.Unlock()
	codec := newCodec(c, conn, r, cancel)
	defer codec.releaseAll()
	server.ServeCodec(codec)
}

// closeIdle closes, until ctx ends, each connection that has had no request under way and no
// session for the idle limit: it holds no task, and it takes the place of a trainer.
func (s *Server) closeIdle(ctx context.Context) {
	ticker := time.NewTicker(s.timeouts.idle / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		for conn, c := range s.conns {
			if c != nil && c.idleFor(s.timeouts.idle) {
				conn.Close()
			}
		}
		s.mu.Unlock()
	}
}

// budget ends a stream that is longer than expected.
type budget struct {
	r    io.Reader
	left int64
}

func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, wire.ErrTooLarge
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

const maxHandshake = 8 << 10

// handshake answers the HTTP CONNECT of rpc.DialHTTP.
func (s *Server) handshake(conn net.Conn, r *bufio.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(s.timeouts.handshake)); err != nil {
		return err
	}
	req, err := http.ReadRequest(r)
	if err != nil {
		return fmt.Errorf("expected CONNECT %s: %w", rpc.DefaultRPCPath, err)
	}
	if req.Method != http.MethodConnect || req.URL.Path != rpc.DefaultRPCPath {
		_, _ = io.WriteString(conn, "HTTP/1.0 405 must CONNECT\r\nContent-Type: text/plain\r\n\r\n405 must CONNECT "+rpc.DefaultRPCPath+"\n")
		return fmt.Errorf("expected CONNECT %s, found %s %s", rpc.DefaultRPCPath, req.Method, req.URL.Path)
	}
	if _, err := io.WriteString(conn, "HTTP/1.0 200 Connected to Go RPC\n\n"); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// closed reports the end of the connection to the master.
func (c *connection) closed() {
	var gone []taskqueue.Disconnected
	own, joined := c.speakers()
	for _, who := range []wire.Trainer{own, joined} {
		//guard:closed-connection-reported
		if who.Ordinal == 0 {
			continue
		}
		gone = append(gone, taskqueue.Disconnected{Trainer: who.Ordinal, Incarnation: who.Incarnation})
	}
	c.server.Master.Disconnected(gone...)
}

// lastCallTimeout bounds the return of a task that could not be written.
const lastCallTimeout = 10 * time.Second

// undelivered returns the task of an answer that could not be written.
func (c *connection) undelivered(body any) {
	task, ok := body.(*taskqueue.Task)
	if !ok || len(task.Chunks) == 0 {
		return // joined clients ask again
	}
	own, _ := c.speakers()
	ctx, cancel := context.WithTimeout(context.Background(), lastCallTimeout)
	defer cancel()
	_ = c.server.Master.Undelivered(ctx, own.Ordinal, own.Incarnation, task.Token) // else it goes back with the connection
}
