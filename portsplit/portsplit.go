// Package portsplit lets several protocols share one port: it looks at the first four bytes
// of each connection and hands it to the listener of its protocol.
//
// A connection that says nothing within the hello timeout, or begins with bytes that nobody
// asked for, is closed. When too many are open, new ones are closed at once. Both are
// counted by the log, not answered: it is not known in which protocol.
package portsplit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
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
	HelloTimeout   time.Duration // for the first bytes; default 10 s
	MaxConnections int           // default 20,000
	Log            *logrus.Entry // default: the standard logger
}

// Splitter is one port with several protocols.
type Splitter struct {
	listeners []net.Listener // the first one's address is that of the branches
	config    Config
	branches  map[string]*branch
	stopped   chan struct{}
	open      atomic.Int64
}

// New splits a listener, which the Splitter owns from now on.
func New(l net.Listener, config Config) *Splitter {
	if config.HelloTimeout == 0 {
		config.HelloTimeout = 10 * time.Second
	}
	if config.MaxConnections == 0 {
		config.MaxConnections = 20_000
	}
	if config.Log == nil {
		config.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	return &Splitter{listeners: []net.Listener{l}, config: config, branches: map[string]*branch{}, stopped: make(chan struct{})}
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
// handed over belong to those who took them.
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
		if n := s.open.Add(1); n > int64(s.config.MaxConnections) {
			s.open.Add(-1)
			conn.Close()
			s.config.Log.WithFields(logrus.Fields{"peer": conn.RemoteAddr().String(), "limit": s.config.MaxConnections}).Warn("connection refused: too many")
			continue
		}
		greeting.Go(func() { s.greet(ctx, &counted{Conn: conn, open: &s.open}) })
	}
}

// greet reads the first bytes and hands the connection over.
func (s *Splitter) greet(ctx context.Context, conn *counted) {
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
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
		s.config.Log.WithFields(logrus.Fields{"peer": conn.RemoteAddr().String(), "first_bytes": fmt.Sprintf("%x", conn.first)}).Debug("connection closed: no such protocol here")
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

// counted is a connection that gives its first bytes once more and is counted while open.
type counted struct {
	net.Conn
	first [prefaceLen]byte
	read  int // of first, from the network
	given int // of first, to the reader
	open  *atomic.Int64
	once  sync.Once
}

func (c *counted) Read(p []byte) (int, error) {
	if c.given < c.read {
		n := copy(p, c.first[c.given:c.read])
		c.given += n
		return n, nil
	}
	return c.Conn.Read(p)
}

// NetConn is the connection below, as of [tls.Conn]: reading from it is for who has read the first bytes.
func (c *counted) NetConn() net.Conn { return c.Conn }

func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
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
