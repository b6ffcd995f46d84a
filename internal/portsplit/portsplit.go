// Package portsplit implements several protocols on one port: it reads the first four bytes
// of each connection and passes it to the listener of its protocol.
//
// A connection that sends nothing within the hello timeout, or begins with the bytes of no
// branch, is closed. If too many are open, new connections are closed immediately. The log counts
// both; there is no reply, because the protocol is unknown.
//
// One branch can have a reserve: connections beyond MaxConnections that only this branch
// uses. Because the protocol of a connection is unknown until its first bytes, new
// connections wait for them within the reserve. If the port is full, the connection that has
// been silent for longest is closed for the new one. If the branch has all its places, one of
// its own connections is closed for the new one: see [Splitter.reservedVictim].
package portsplit

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
)

// What protocols begin with: all prefaces have four bytes.
const (
	HTTPConnect = "CONN" // net/rpc
	HTTPGet     = "GET "
	HTTP2       = "PRI " // gRPC
)

const prefaceLen = 4

// Config has the bounds of a split port. The zero value of a field means its default.
type Config struct {
	HelloTimeout   time.Duration // limit for the first bytes; default 10 s
	MaxConnections int           // default 20,000, fewer if the process may not open that many files
	Reserved       string        // preface of the branch with a reserve; default: none
	Reserve        int           // connections beyond MaxConnections, if Reserved is set; default 256
	Log            *logrus.Entry // default: the standard logger

	// Misdirected is what a client of HTTP, or of net/rpc, reads that has no branch here; "": it reads nothing.
	Misdirected string
}

const (
	defaultMax     = 20_000
	defaultReserve = 256
	otherFiles     = 512 // left for files and for connections to other processes

	// greetingShare of the reserve is kept free of connections of the branch with the reserve: new connections say hello in it.
	greetingShare = 4
	// idleAfter is how long a reserved connection has transferred nothing when it is closed before busy ones.
	idleAfter = time.Second
	// unknownEvery is the time between two log lines about unknown protocols of one host, maxUnknown the number of hosts.
	unknownEvery = time.Minute
	maxUnknown   = 1024
	// lingering is how long a client has to read the answer of Misdirected.
	lingering = 250 * time.Millisecond
	// refusalsEvery is the time between two log lines about refused connections.
	refusalsEvery = 10 * time.Second
)

// Splitter is one port with several protocols.
type Splitter struct {
	listeners []net.Listener // all branches have the address of the first listener
	config    Config
	branches  map[string]*branch
	stopped   chan struct{}

	mu       sync.Mutex
	open     int                  // number of connections.
	handed   int                  // of open: passed to branches without a reserve.
	reserved list.List            // of *counted, of open: passed to the branch with the reserve, oldest first.
	silent   list.List            // of *counted: connections that have not sent their first bytes, oldest first.
	refusals int                  // since the last log line about them.
	logged   time.Time            // time of that line.
	unknowns map[string]time.Time // of the last line about an unknown protocol, by host.
}

// New splits a listener, which the Splitter owns from now on.
func New(l net.Listener, config Config) *Splitter {
	if config.HelloTimeout == 0 {
		config.HelloTimeout = 10 * time.Second
	}
	if config.Reserved == "" {
		config.Reserve = 0
	} else if config.Reserve == 0 {
		config.Reserve = defaultReserve
	}
	//guard:connection-limit
	if config.MaxConnections == 0 {
		config.MaxConnections = affordable(config.Reserve)
	}
	if config.Log == nil {
		config.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	return &Splitter{
		listeners: []net.Listener{l}, config: config, branches: map[string]*branch{}, stopped: make(chan struct{}), unknowns: map[string]time.Time{},
	}
}

// affordable returns the default of MaxConnections: a port that uses up the open files of the
// process cannot accept the connections of its reserve.
func affordable(reserve int) int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur >= uint64(defaultMax+reserve+otherFiles) {
		return defaultMax
	}
	return max(int(files.Cur)-reserve-otherFiles, int(files.Cur)/2)
}

// Join takes the connections of another listener in as well, which the Splitter owns from
// now on: they go to the same branches, and all together are within the same bounds. It is
// called before Run.
func (s *Splitter) Join(l net.Listener) { s.listeners = append(s.listeners, l) }

// Branch returns the listener of the connections that begin with preface, four bytes. All
// branches are made before Run.
func (s *Splitter) Branch(preface string) net.Listener {
	if len(preface) != prefaceLen {
		panic(fmt.Sprintf("portsplit: preface %q: expected %d bytes", preface, prefaceLen))
	}
	b := &branch{conns: make(chan net.Conn), splitter: s, closed: make(chan struct{})}
	s.branches[preface] = b
	return b
}

// Run accepts until ctx ends, then closes the port and its branches; connections that were
// accepted from a branch belong to their receivers.
func (s *Splitter) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	var accepting, greeting sync.WaitGroup
	for _, l := range s.listeners {
		accepting.Go(func() { s.accept(ctx, l, &greeting) })
	}
	accepting.Wait()
	close(s.stopped)
	greeting.Wait()
	return nil
}

func (s *Splitter) close() {
	for _, l := range s.listeners {
		l.Close()
	}
}

// accept ends when its listener is closed.
func (s *Splitter) accept(ctx context.Context, l net.Listener, greeting *sync.WaitGroup) {
	defer l.Close()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			if err == nil {
				conn.Close()
			}
			return
		case err != nil: // out of file descriptors: some will be closed
			s.config.Log.WithError(err).Error("accept a connection")
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		c := &counted{Conn: conn, splitter: s}
		if !s.admit(c) {
			s.refuse(conn)
			continue
		}
		greeting.Go(func() { s.readPreface(ctx, c) })
	}
}

// admit counts a new connection. If all places are taken, and there is a reserve, the
// connection that has been silent for longest gives its place to the new one.
func (s *Splitter) admit(c *counted) bool {
	s.mu.Lock()
	oldest := s.silent.Front()
	//guard:full-port-admits-hello
	full := s.open >= s.config.MaxConnections+s.config.Reserve
	if full && (oldest == nil || s.config.Reserve == 0) {
		s.mu.Unlock()
		return false
	}
	if full {
		s.silent.Remove(oldest).(*counted).silent = nil
	}
	s.open++
	c.silent = s.silent.PushBack(c)
	s.mu.Unlock()
	if full {
		s.refuse(oldest.Value.(*counted))
	}
	return true
}

// assign counts a connection for the branch of its first bytes, within the bounds. A
// connection for the branch with the reserve always gets a place; if necessary, another connection is closed.
func (s *Splitter) assign(c *counted) bool {
	s.mu.Lock()
	if c.silent == nil { // closed for a newer connection
		s.mu.Unlock()
		return false
	}
	var victim *counted
	if s.config.Reserved == string(c.first[:]) {
		if s.reserved.Len() >= max(s.config.Reserve-s.config.Reserve/greetingShare, 1) {
			victim = s.reservedVictim(monotonic())
			s.reserved.Remove(victim.reserved)
			victim.reserved = nil
		}
		c.used.Store(monotonic())
		c.reserved = s.reserved.PushBack(c)
	} else {
		//guard:reserved-connections
		if s.handed >= s.config.MaxConnections {
			s.mu.Unlock()
			return false
		}
		s.handed++
		c.handed = true
	}
	s.silent.Remove(c.silent)
	c.silent = nil
	s.mu.Unlock()
	if victim != nil {
		s.refuse(victim)
	}
	return true
}

// reservedVictim returns the reserved connection that is closed for a new connection. It belongs to
// the remote host with the most reserved connections. Of these, it is the connection with the longest
// idle time, if that is idleAfter or more, else the oldest. So a host with many connections cannot
// displace a host with fewer, and early connections have no precedence.
func (s *Splitter) reservedVictim(now int64) (victim *counted) {
	count, most := map[string]int{}, 0
	for e := s.reserved.Front(); e != nil; e = e.Next() {
		host := hostOf(e.Value.(*counted).RemoteAddr())
		count[host]++
		most = max(most, count[host])
	}
	idle := now - idleAfter.Nanoseconds()
	for e := s.reserved.Front(); e != nil; e = e.Next() {
		c := e.Value.(*counted)
		//guard:reserved-connection-per-host
		if count[hostOf(c.RemoteAddr())] < most {
			continue
		}
		if used := c.used.Load(); victim == nil {
			victim, idle = c, min(idle, used)
		} else if used < idle {
			victim, idle = c, used
		}
	}
	return victim
}

// leave undoes admit and place.
func (s *Splitter) leave(c *counted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if c.silent != nil {
		s.silent.Remove(c.silent)
		c.silent = nil
	}
	if c.handed {
		s.handed--
	}
	if c.reserved != nil {
		s.reserved.Remove(c.reserved)
		c.reserved = nil
	}
}

// refuse closes a connection that is one too many. The log has one line in refusalsEvery,
// with the number of connections: a peer can redial thousands of times in that time.
func (s *Splitter) refuse(conn net.Conn) {
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals++
	if now := time.Now(); now.Sub(s.logged) >= refusalsEvery {
		s.config.Log.WithFields(logrus.Fields{
			"peer": conn.RemoteAddr().String(), "limit": s.config.MaxConnections, "refused": s.refusals,
		}).Warn("connection refused: too many")
		s.refusals, s.logged = 0, now
	}
}

var start = time.Now()

// monotonic returns the nanoseconds since the start of the process.
func monotonic() int64 { return time.Since(start).Nanoseconds() }

// hostOf returns the address without the port, and "local" for a unix socket.
func hostOf(addr net.Addr) string {
	if host, _, err := net.SplitHostPort(addr.String()); err == nil && host != "" {
		return host
	}
	return "local"
}

// readPreface reads the first bytes and hands the connection over.
func (s *Splitter) readPreface(ctx context.Context, conn *counted) {
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	//guard:hello-timeout
	if conn.SetReadDeadline(time.Now().Add(s.config.HelloTimeout)) != nil {
		conn.Close()
		return
	}
	for conn.read < prefaceLen {
		n, err := conn.Conn.Read(conn.first[conn.read:])
		conn.read += n
		if err != nil {
			conn.Close()
			return
		}
	}
	b := s.branches[string(conn.first[:])]
	if b == nil || conn.SetReadDeadline(time.Time{}) != nil {
		s.sayUnknown(conn)
		s.answerMisdirected(conn)
		conn.Close()
		return
	}
	if !s.assign(conn) {
		s.refuse(conn)
		return
	}
	//guard:handed-connection-without-deadline
	if !stop() {
		conn.Close()
		return
	}
	select {
	case b.conns <- conn:
	case <-b.closed:
		conn.Close()
	case <-ctx.Done():
		conn.Close()
	}
}

// sayUnknown logs a connection of an unknown protocol, once a minute for each host.
func (s *Splitter) sayUnknown(conn *counted) {
	host, now := hostOf(conn.RemoteAddr()), time.Now()
	s.mu.Lock()
	last, seen := s.unknowns[host]
	if seen && now.Sub(last) < unknownEvery {
		s.mu.Unlock()
		return
	}
	if len(s.unknowns) >= maxUnknown {
		maps.DeleteFunc(s.unknowns, func(_ string, at time.Time) bool { return now.Sub(at) >= unknownEvery })
	}
	known := len(s.unknowns) < maxUnknown
	if known {
		s.unknowns[host] = now
	}
	s.mu.Unlock()
	if known {
		s.config.Log.WithFields(logrus.Fields{"peer": conn.RemoteAddr().String(), "first_bytes": fmt.Sprintf("%q", conn.first)}).Warn("connection closed: unknown protocol")
	}
}

// answerMisdirected sends an HTTP client the reply that it dialed the wrong port.
func (s *Splitter) answerMisdirected(conn *counted) {
	if s.config.Misdirected == "" || !slices.Contains([]string{HTTPConnect, HTTPGet, "POST", "HEAD", "PUT "}, string(conn.first[:])) {
		return
	}
	if conn.SetDeadline(time.Now().Add(lingering)) != nil {
		return
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 421 Misdirected Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"+s.config.Misdirected+"\n"); err != nil {
		return
	}
	if half, ok := conn.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, conn.Conn, 4<<10) // a close with unread bytes would take the answer away
	}
}

// counted is a connection that gives its first bytes once more and is counted while open.
type counted struct {
	net.Conn
	first [prefaceLen]byte
	read  int // of first, from the network
	given int // of first, to the reader
	once  sync.Once

	used atomic.Int64 // when bytes were last transferred, by monotonic

	splitter *Splitter     // its mu guards:
	silent   *list.Element // of splitter.silent, before the first bytes
	handed   bool          // counted in splitter.handed
	reserved *list.Element // of splitter.reserved
}

func (c *counted) Read(p []byte) (int, error) {
	if c.given < c.read {
		n := copy(p, c.first[c.given:c.read])
		c.given += n
		return n, nil
	}
	return c.transferred(c.Conn.Read(p))
}

func (c *counted) Write(p []byte) (int, error) { return c.transferred(c.Conn.Write(p)) }

func (c *counted) transferred(n int, err error) (int, error) {
	if n > 0 {
		c.used.Store(monotonic())
	}
	return n, err
}

// NetConn returns the underlying connection, as [tls.Conn] does. Its first bytes may already have been read.
func (c *counted) NetConn() net.Conn { return c.Conn }

func (c *counted) Close() error {
	c.once.Do(func() { c.splitter.leave(c) })
	return c.Conn.Close()
}

// branch is the listener of one protocol.
type branch struct {
	conns    chan net.Conn
	splitter *Splitter
	closed   chan struct{}
	once     sync.Once
}

func (b *branch) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case <-b.splitter.stopped:
		return nil, net.ErrClosed
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

func (b *branch) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

func (b *branch) Addr() net.Addr { return b.splitter.listeners[0].Addr() }
