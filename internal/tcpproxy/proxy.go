// Package tcpproxy stands before a server on the level of bytes, and does to them what networks do: it delays, withholds and
// loses them, in each direction on its own. What goes on goes on in order.
//
// A client's connection lives as long as the one to the server that belongs to it. Its end goes the way of the bytes: it is
// held and delayed as they are, and comes after them.
package tcpproxy

import (
	"context"
	"net"
	"sync"
	"time"
)

// Proxy is before one server. [New] makes it, Close ends it.
type Proxy struct {
	listener    net.Listener
	stopDialing context.CancelFunc
	wg          sync.WaitGroup

	mu       sync.Mutex
	target   string             // empty: new connections end at once
	links    map[*link]struct{} // those that are open
	requests valve
	replies  valve
	refuse   bool
	closed   bool
}

// New listens on a port of 127.0.0.1, and passes on what comes to target, host:port.
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

// HoldRequests keeps what clients send from reaching the server, or lets it go on. No connection breaks meanwhile. What is
// being written at the moment of the call still arrives.
func (p *Proxy) HoldRequests(hold bool) { p.set(func() { p.requests.shut = hold }) }

// HoldReplies keeps what the server sends from reaching the clients.
func (p *Proxy) HoldReplies(hold bool) { p.set(func() { p.replies.shut = hold }) }

// Delay makes each byte arrive so much later, however many are under way; what is already under way, too.
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

// HeldRequests is how many bytes of clients were read and not passed on yet: while requests are held, all that were sent.
func (p *Proxy) HeldRequests() int {
	return p.count(func(l *link) int { return l.requests.waiting() })
}

// HeldReplies is how many bytes of the server were read and not passed on yet.
func (p *Proxy) HeldReplies() int {
	return p.count(func(l *link) int { return l.replies.waiting() })
}

func (p *Proxy) count(of func(*link) int) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		n += of(l)
	}
	return n
}

// SetTarget changes the server, host:port. Connections to another server end. With an empty target, new connections end at once
// and open ones stay.
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

// Refuse makes new connections end at once, or ends that. [Proxy.Cut] ends those that are open.
func (p *Proxy) Refuse(on bool) { p.set(func() { p.refuse = on }) }

// Cut ends all connections. What was held or delayed is lost.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		p.endLocked(l)
	}
}

// Close ends the proxy and all of its connections, and returns when nothing of it runs any more.
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
			_ = client.Close() // nobody uses it yet
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
	for _, w := range []*way{l.requests, l.replies} {
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
