package drill

import (
	"context"
	"errors"
	"net"
	"time"

	"trainmaster/internal/tcpproxy"
)

// State is the effect of a proxy on forwarded bytes, in both directions.
type State struct {
	Cut     bool  `json:"cut"`      // hold all bytes and keep connections open, as in a network that loses every packet
	DelayMS int64 `json:"delay_ms"` // delay in each direction; the order is kept
}

func (s State) apply(p *tcpproxy.Proxy) {
	delay := time.Duration(s.DelayMS) * time.Millisecond
	p.Delay(delay, delay)
	p.HoldRequests(s.Cut)
	p.HoldReplies(s.Cut)
}

// Proxies are proxies of etcd, one for each master. A drill controls them.
type Proxies struct {
	byName  map[string]*tcpproxy.Proxy
	secret  string
	control net.Listener
}

// NewProxies listens for commands. Commands must have the secret.
func NewProxies(secret string) (*Proxies, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &Proxies{byName: map[string]*tcpproxy.Proxy{}, secret: secret, control: l}, nil
}

// Add adds a proxy of target, host:port, for a process. It must be called before Run.
func (p *Proxies) Add(name, target string) (addr string, err error) {
	one, err := tcpproxy.New(target)
	if err != nil {
		return "", err
	}
	p.byName[name] = one
	return one.Addr(), nil
}

// Control returns host:port of the control.
func (p *Proxies) Control() string { return p.control.Addr().String() }

// Run executes commands until ctx ends, and then closes the proxies.
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
