// Package tcpproxy implements a TCP proxy that simulates faults of a network: it delays, holds and drops bytes, separately for each
// direction. Forwarded bytes keep their order.
//
// The connection of a client and its connection to the server end together. The end of a stream is held and delayed like its bytes,
// and is forwarded after them.
package tcpproxy

import (
	"context"
	"net"
	"sync"
	"time"
)

// Proxy forwards connections to one server. New starts it, Close stops it.
type Proxy struct {
	listener    net.Listener
	stopDialing context.CancelFunc
	wg          sync.WaitGroup

	mu       sync.Mutex
	target   string             // empty: new connections are closed immediately
	links    map[*link]struct{} // open connections
	requests valve
	replies  valve
	refuse   bool
	closed   bool
}

// New listens on a port of 127.0.0.1, and forwards its connections to target, host:port.
func New(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{target: target, listener: listener, stopDialing: cancel, links: map[*link]struct{}{}}
	p.wg.Go(func() { p.accept(ctx) })
	return p, nil
}

// Addr is the proxy's own host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// HoldRequests holds the bytes of clients, or forwards them again. Connections stay open. Bytes that are being written during the
// call still arrive.
func (p *Proxy) HoldRequests(hold bool) { p.set(func() { p.requests.blocked = hold }) }

// HoldReplies holds the bytes of the server, as HoldRequests does with the bytes of clients.
func (p *Proxy) HoldReplies(hold bool) { p.set(func() { p.replies.blocked = hold }) }

// Delay delays each byte, independent of the number of bytes in transit. It also applies to bytes that are already in transit.
func (p *Proxy) Delay(requests, replies time.Duration) {
	p.set(func() { p.requests.delay, p.replies.delay = requests, replies })
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	for l := range p.links {
		l.requests.set(p.requests)
		l.replies.set(p.replies)
	}
}

// HeldRequests returns the number of bytes of clients that were read and not forwarded yet: while requests are held, all sent bytes.
func (p *Proxy) HeldRequests() int {
	return p.count(func(l *link) int { return l.requests.queued() })
}

// HeldReplies returns the number of bytes of the server that were read and not forwarded yet.
func (p *Proxy) HeldReplies() int {
	return p.count(func(l *link) int { return l.replies.queued() })
}

func (p *Proxy) count(of func(*link) int) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		n += of(l)
	}
	return n
}

// SetTarget changes the server, host:port. Connections to another server are closed. With an empty target, new connections are closed
// immediately and open connections stay.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	for l := range p.links {
		//guard:proxy-moves-connections
		if target != "" && l.target != target {
			p.endLocked(l)
		}
	}
}

// Refuse closes new connections immediately, or accepts them again. [Proxy.Cut] closes the open connections.
func (p *Proxy) Refuse(on bool) { p.set(func() { p.refuse = on }) }

// Cut closes all connections. Held and delayed bytes are lost.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		p.endLocked(l)
	}
}

// Close stops the proxy, closes all connections, and returns when all goroutines have ended.
func (p *Proxy) Close() {
	p.set(func() { p.closed = true })
	p.stopDialing()
	_ = p.listener.Close() // only ever closed already
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		target, ok := p.admits()
		if !ok {
			_ = client.Close() // it is not used yet
			continue
		}
		p.wg.Go(func() { p.connect(ctx, client, target) })
	}
}

func (p *Proxy) admits() (target string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target, p.admitsLocked() && p.target != ""
}

func (p *Proxy) admitsLocked() bool { return !p.refuse && !p.closed }

// connect begins a link, unless the proxy came to refuse it, or its target changed, while it dialled.
func (p *Proxy) connect(ctx context.Context, client net.Conn, target string) {
	server, err := new(net.Dialer).DialContext(ctx, "tcp", target)
	if err != nil {
		_ = client.Close() // as its target does
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &link{target: target, requests: newWay(client, server, p.requests), replies: newWay(server, client, p.replies)}
	if !p.admitsLocked() || p.target != target {
		l.close()
		return
	}
	p.links[l] = struct{}{}
	for _, w := range []*direction{l.requests, l.replies} {
		p.wg.Go(w.fill)
		p.wg.Go(func() {
			w.drain()
			p.end(l)
		})
	}
}

func (p *Proxy) end(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked(l)
}

func (p *Proxy) endLocked(l *link) {
	delete(p.links, l)
	l.close()
}
