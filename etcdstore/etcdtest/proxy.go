package etcdtest

import (
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy stands before an etcd, or another server, on the level of bytes. What it holds stays held
// until it is released or the connection is cut.
type Proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	refuse atomic.Bool
	delay  atomic.Int64 // ns, each way's first byte of a burst

	mu       sync.Mutex
	changed  *sync.Cond // of everything below
	conns    map[net.Conn]struct{}
	requests valve
	replies  valve
	closed   bool
}

// valve is one direction of all connections; guarded by Proxy.mu.
type valve struct {
	shut bool
	held int // bytes read and not yet passed on
}

// StartProxy starts a proxy before endpoint. It ends with the test.
func StartProxy(t testing.TB, endpoint string) *Proxy {
	t.Helper()
	p, err := NewProxy(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// NewProxy is StartProxy for a program that is no test: Close ends it.
func NewProxy(endpoint string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		target:   strings.TrimPrefix(endpoint, "http://"),
		listener: listener,
		conns:    map[net.Conn]struct{}{},
	}
	p.changed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p, nil
}

// Endpoint is http://127.0.0.1:PORT of the proxy.
func (p *Proxy) Endpoint() string { return "http://" + p.listener.Addr().String() }

// Addr is host:port of the proxy, for what is no etcd.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// HoldRequests keeps what clients send from reaching etcd (or lets it go on,
// what was held first).
func (p *Proxy) HoldRequests(hold bool) { p.set(&p.requests, hold) }

// HoldReplies keeps what etcd answers from reaching the clients.
func (p *Proxy) HoldReplies(hold bool) { p.set(&p.replies, hold) }

// HeldRequests is how many bytes of clients are being kept.
func (p *Proxy) HeldRequests() int { return p.count(&p.requests) }

// HeldReplies is how many bytes of etcd are being kept.
func (p *Proxy) HeldReplies() int { return p.count(&p.replies) }

// Delay makes every burst of bytes wait, each way; 0 ends it.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// Refuse makes new connections end at once; Cut ends those that are open.
func (p *Proxy) Refuse(on bool) { p.refuse.Store(on) }

// Cut ends all connections. What was held is lost.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
	clear(p.conns)
	p.changed.Broadcast()
}

func (p *Proxy) set(v *valve, shut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v.shut = shut
	p.changed.Broadcast()
}

func (p *Proxy) count(v *valve) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return v.held
}

// Close ends the proxy and all of its connections.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.refuse.Load() {
			_ = client.Close()
			continue
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		if p.closed {
			_ = client.Close()
			_ = server.Close()
		} else {
			p.conns[client], p.conns[server] = struct{}{}, struct{}{}
			p.wg.Go(func() { p.pass(server, client, &p.requests) })
			p.wg.Go(func() { p.pass(client, server, &p.replies) })
		}
		p.mu.Unlock()
	}
}

// pass copies one direction until either end closes, then closes both. While the valve is
// shut it goes on reading, so that held says all that the sender sent.
func (p *Proxy) pass(to, from net.Conn, v *valve) {
	var pending []byte // guarded by p.mu
	var ended bool
	p.wg.Go(func() {
		defer p.forget(to, from)
		for {
			next, ok := p.take(from, v, &pending, &ended)
			if !ok {
				return
			}
			time.Sleep(time.Duration(p.delay.Load()))
			if _, err := to.Write(next); err != nil {
				return
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		pending = append(pending, buf[:n]...)
		v.held += n
		ended = err != nil
		p.changed.Broadcast()
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// take waits until the valve is open and there is something to pass on; false when there
// will be nothing more, or the connection was cut.
func (p *Proxy) take(from net.Conn, v *valve, pending *[]byte, ended *bool) (next []byte, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		_, open := p.conns[from]
		if open && (v.shut || len(*pending) == 0 && !*ended) {
			p.changed.Wait()
			continue
		}
		next, *pending = *pending, nil
		v.held -= len(next)
		return next, open && len(next) > 0
	}
}

func (p *Proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
		delete(p.conns, conn)
	}
	p.changed.Broadcast()
}
