package pserver

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// What the two protocols of the port start with.
const (
	dataPreface = "TMPS" // wire.Magic
	grpcPreface = "PRI " // of HTTP/2's connection preface
)

// keepAlive finds out within half a minute that a trainer's machine is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}

// door accepts connections and tells the two protocols apart.
type door struct {
	cfg     *Config
	shard   *shard
	buffers *buffers
	grpc    *handover
	stopped chan struct{}

	mu    sync.Mutex
	open  map[net.Conn]bool // true: ours to close, false: the gRPC server's
	conns sync.WaitGroup
}

func newDoor(cfg *Config, shard *shard) *door {
	stopped := make(chan struct{})
	return &door{
		cfg: cfg, shard: shard, buffers: newBuffers(cfg.BufferBytes), stopped: stopped,
		grpc: &handover{conns: make(chan net.Conn), stopped: stopped, addr: cfg.Listener.Addr()},
		open: map[net.Conn]bool{},
	}
}

func (d *door) run() error {
	for {
		nc, err := d.cfg.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			d.shard.log.WithError(err).Error("accept a connection")
			select {
			case <-time.After(100 * time.Millisecond): // out of file descriptors: some will close
			case <-d.stopped:
			}
			continue
		}
		if !d.admit(nc) {
			nc.Close()
			continue
		}
		if tcp, ok := nc.(*net.TCPConn); ok {
			tcp.SetKeepAliveConfig(keepAlive) //nolint:errcheck // a closed one shows at the first read
		}
		d.conns.Go(func() { d.welcome(nc) })
	}
}

// admit counts the connection in, unless there are too many.
func (d *door) admit(nc net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.stopped:
		return false
	default:
	}
	if len(d.open) >= d.cfg.MaxConnections {
		d.shard.log.WithField("peer", nc.RemoteAddr()).WithField("limit", d.cfg.MaxConnections).Warn("connection refused: too many")
		return false
	}
	d.open[nc] = true
	d.shard.counters.connections.Add(1)
	return true
}

func (d *door) forget(nc net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.open[nc]; ok {
		delete(d.open, nc)
		d.shard.counters.connections.Add(-1)
	}
}

// welcome looks at the first bytes and passes the connection on.
func (d *door) welcome(nc net.Conn) {
	log := d.shard.log.WithField("peer", nc.RemoteAddr())
	r := bufio.NewReaderSize(nc, readAhead)
	first := func() []byte {
		if nc.SetReadDeadline(time.Now().Add(d.cfg.HelloTimeout)) != nil {
			return nil
		}
		b, _ := r.Peek(len(dataPreface))
		return b
	}()
	switch string(first) {
	case dataPreface:
		defer d.forget(nc)
		c := &conn{shard: d.shard, buffers: d.buffers, limits: d.cfg, stop: d.stopped, log: log, nc: nc, r: r}
		c.serve()
	case grpcPreface:
		p := &peeked{Conn: nc, r: r, closed: sync.OnceFunc(func() { d.forget(nc) })}
		if nc.SetReadDeadline(time.Time{}) != nil || !d.leave(nc) || !d.grpc.pass(p) {
			p.Close()
		}
	default:
		log.WithField("first_bytes", fmt.Sprintf("%x", first)).Debug("connection closed: neither protocol")
		nc.Close()
		d.forget(nc)
	}
}

// leave makes the connection another's to close, unless the server stops.
func (d *door) leave(nc net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.open[nc]; !ok {
		return false
	}
	d.open[nc] = false
	return true
}

// stop closes the port and every data connection.
func (d *door) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.stopped)
	d.cfg.Listener.Close()
	for nc, ours := range d.open {
		if ours {
			nc.Close()
		}
	}
}

// wait returns when nobody serves a data connection any more.
func (d *door) wait() { d.conns.Wait() }

// handover is the listener of the gRPC server.
type handover struct {
	conns   chan net.Conn
	stopped <-chan struct{}
	addr    net.Addr
}

func (h *handover) pass(nc net.Conn) bool {
	select {
	case h.conns <- nc:
		return true
	case <-h.stopped:
		return false
	}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case nc := <-h.conns:
		return nc, nil
	case <-h.stopped:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error   { return nil } // the door closes it
func (h *handover) Addr() net.Addr { return h.addr }

// peeked is a connection whose first bytes were read already.
type peeked struct {
	net.Conn
	r      *bufio.Reader
	closed func()
}

func (p *peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

func (p *peeked) Close() error {
	defer p.closed()
	return p.Conn.Close()
}
