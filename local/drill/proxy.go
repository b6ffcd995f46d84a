package drill

import (
	"context"
	"errors"
	"net"
	"time"

	"trainmaster/internal/tcpproxy"
)

// State is what a proxy does to the bytes that go through it, in both directions.
type State struct {
	Cut     bool  `json:"cut"`      // nothing passes, and no connection breaks, as in a network that loses every packet
	DelayMS int64 `json:"delay_ms"` // all arrives in order, each way so much later
}

func (s State) apply(p *tcpproxy.Proxy) {
	delay := time.Duration(s.DelayMS) * time.Millisecond
	p.Delay(delay, delay)
	p.HoldRequests(s.Cut)
	p.HoldReplies(s.Cut)
}

// Proxies stand before etcd, one for each of several processes, and are controlled by the drill.
type Proxies struct {
	byName  map[string]*tcpproxy.Proxy
	secret  string
	control net.Listener
}

// NewProxies begins to listen for commands, which carry the secret.
func NewProxies(secret string) (*Proxies, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &Proxies{byName: map[string]*tcpproxy.Proxy{}, secret: secret, control: l}, nil
}

// Add puts a proxy before target, host:port, for a process. It must come before Run.
func (p *Proxies) Add(name, target string) (addr string, err error) {
	one, err := tcpproxy.New(target)
	if err != nil {
		return "", err
	}
	p.byName[name] = one
	return one.Addr(), nil
}

// Control is host:port of the control.
func (p *Proxies) Control() string { return p.control.Addr().String() }

// Run takes commands until ctx ends; then the proxies close.
func (p *Proxies) Run(ctx context.Context) error {
	err := serveControl(ctx, p.control, p.secret, p.byName)
	for _, one := range p.byName {
		one.Close()
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(errors.New("the control of the proxies ended"), err)
}
