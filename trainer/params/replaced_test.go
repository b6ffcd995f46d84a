package params_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"trainmaster/internal/tcpproxy"
	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// registry names one address, which changes.
type registry struct {
	mu      sync.Mutex
	addr    string
	changed context.CancelCauseFunc
	same    context.Context
}

func (r *registry) set(addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed != nil {
		r.changed(errors.New("replaced"))
	}
	r.addr = addr
	r.same, r.changed = context.WithCancelCause(context.Background())
}

func (r *registry) addrs(context.Context) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return []string{r.addr}, nil
}

func (r *registry) during(parent context.Context, _ int, addr string) (context.Context, context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithCancelCause(parent)
	if addr != r.addr {
		cancel(errors.New("replaced"))
	}
	stop := context.AfterFunc(r.same, func() { cancel(errors.New("replaced")) })
	return ctx, func() { stop(); cancel(nil) }
}

// F55: a server hangs with its connections open. A client continues at the next server when the registry names it,
// in any operation, before the reply timeout.
func TestHungServerIsLeftWhenTheRegistryNamesAnother(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *params.Client) error{
		"push": func(ctx context.Context, c *params.Client) error {
			_, err := c.PushPull(ctx, 1, 1, tensors(1), tensors(0))
			return err
		},
		"pull":    func(ctx context.Context, c *params.Client) error { _, err := c.Pull(ctx, tensors(0), 0); return err },
		"init":    func(ctx context.Context, c *params.Client) error { return c.Init(ctx, tensors(0)) },
		"connect": func(ctx context.Context, c *params.Client) error { _, err := c.Pull(ctx, tensors(0), 0); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var r registry
			addrs, _ := startShards(t, 2, pserver.Config{DataSocket: pserver.SocketOff})
			var proxies []*tcpproxy.Proxy
			for range 2 {
				p, err := tcpproxy.New(addrs[0]) // both lead to one server, so that the second has the parameters too
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(p.Close)
				proxies = append(proxies, p)
			}
			hung := proxies[0]
			r.set(hung.Addr())
			cfg := config(nil, params.Async)
			cfg.Addrs, cfg.During, cfg.ReplyTimeout = r.addrs, r.during, time.Hour
			c := connect(t, cfg)
			if name != "init" {
				if err := c.Init(within(t), tensors(0)); err != nil {
					t.Fatal(err)
				}
			}
			if name == "connect" {
				hung.Cut()
			}
			hung.HoldRequests(true)
			ended := make(chan error, 1)
			go func() { ended <- call(within(t), c) }()
			for hung.HeldRequests() == 0 {
				select {
				case err := <-ended:
					t.Fatalf("the call ended at a server that hangs: %v", err)
				case <-time.After(time.Millisecond): // until the call has sent something
				}
			}
			r.set(proxies[1].Addr())
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// F54: a server dies, and its port refuses connections. A client in a long pause between two attempts dials the next server as soon as
// the registry names it.
func TestPauseEndsWhenTheRegistryNamesAnotherServer(t *testing.T) {
	var r registry
	addrs, _ := startShards(t, 1, pserver.Config{DataSocket: pserver.SocketOff})
	dying, err := tcpproxy.New(addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dying.Close)
	r.set(dying.Addr())
	cfg := config(nil, params.Async)
	cfg.Addrs, cfg.During, cfg.RetryMin, cfg.RetryMax = r.addrs, r.during, time.Hour, time.Hour
	c := connect(t, cfg)
	if err := c.Init(within(t), tensors(0)); err != nil {
		t.Fatal(err)
	}
	dying.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := c.PushPull(within(t), 1, 1, tensors(1), tensors(0))
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("the call ended without a server: %v", err)
	case <-time.After(50 * time.Millisecond): // usually the pause has begun; either case must pass
	}
	r.set(addrs[0])
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
