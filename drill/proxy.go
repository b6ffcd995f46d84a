package drill

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// State is what a proxy does to the bytes that go through it, in both directions.
type State struct {
	Cut     bool  `json:"cut"`      // nothing passes, and no connection breaks, as in a network that loses every packet
	DelayMS int64 `json:"delay_ms"` // all arrives in order, each way so much later
}

// proxy stands before a server.
type proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, when state changes
	state   State
	conns   map[net.Conn]struct{}
	closed  bool
}

func newProxy(target string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{target: target, listener: l, changed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) set(s State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = s
	close(p.changed)
	p.changed = make(chan struct{})
}

// close ends it, and what went through it.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	for conn := range p.conns {
		_ = conn.Close() // may be closed already
	}
	p.mu.Unlock()
	_ = p.listener.Close() // only ever closed already
	p.set(State{})
	p.wg.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.connect(client) })
	}
}

func (p *proxy) connect(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close() // as its target does
		return
	}
	if !p.hold(client, server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pass(server, client) })
	both.Go(func() { p.pass(client, server) })
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, client)
	delete(p.conns, server)
}

// hold keeps connections where close finds them; false when it came first.
func (p *proxy) hold(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		if p.closed {
			_ = conn.Close() // nobody uses it yet
			continue
		}
		p.conns[conn] = struct{}{}
	}
	return !p.closed
}

// parcel is bytes that are due later.
type parcel struct {
	read  time.Time
	bytes []byte
}

// window bounds what is under way in one direction of a connection.
const window = 1024

// pass copies one direction until either end closes, then closes both.
func (p *proxy) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	parcels := make(chan parcel, window)
	ended := make(chan struct{})
	p.wg.Go(func() {
		defer close(parcels)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if n > 0 {
				select {
				case parcels <- parcel{time.Now(), buf[:n]}:
				case <-ended:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	defer close(ended)
	for next := range parcels {
		if !p.ripe(next.read) {
			return
		}
		if _, err := to.Write(next.bytes); err != nil {
			return
		}
	}
}

// ripe waits until what was read then may go on; false when the proxy closes first.
func (p *proxy) ripe(read time.Time) bool {
	for {
		p.mu.Lock()
		state, changed, closed := p.state, p.changed, p.closed
		p.mu.Unlock()
		wait := time.Until(read.Add(time.Duration(state.DelayMS) * time.Millisecond))
		switch {
		case closed:
			return false
		case state.Cut:
			<-changed
		case wait <= 0:
			return true
		default:
			select {
			case <-time.After(wait):
			case <-changed:
			}
		}
	}
}

// Proxies stand before etcd, one for each of several processes, and are controlled by the drill.
type Proxies struct {
	byName  map[string]*proxy
	secret  string
	control net.Listener
}

// NewProxies begins to listen for commands, which carry the secret.
func NewProxies(secret string) (*Proxies, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &Proxies{byName: map[string]*proxy{}, secret: secret, control: l}, nil
}

// Add puts a proxy before target, host:port, for a process. It must come before Run.
func (p *Proxies) Add(name, target string) (addr string, err error) {
	one, err := newProxy(target)
	if err != nil {
		return "", err
	}
	p.byName[name] = one
	return one.listener.Addr().String(), nil
}

// Control is host:port of the control.
func (p *Proxies) Control() string { return p.control.Addr().String() }

// Run takes commands until ctx ends; then the proxies close.
func (p *Proxies) Run(ctx context.Context) error {
	err := serveControl(ctx, p.control, p.secret, p.byName)
	for _, one := range p.byName {
		one.close()
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(errors.New("the control of the proxies ended"), err)
}
