package trainer

import (
	"context"
	"sync"
)

// Locator says where the leader is.
type Locator interface {
	// Addr returns the leader's address; it waits until one is known, or ctx ends.
	Addr(ctx context.Context) (string, error)
}

// At is a Locator for a master at a fixed address.
type At string

// Addr returns the address.
func (a At) Addr(context.Context) (string, error) { return string(a), nil }

// Follow is a Locator that follows announcements, such as etcdstore's watch of
// /master/addr: "" means that no leader is known.
type Follow struct {
	mu      sync.Mutex
	addr    string
	changed chan struct{}
}

// NewFollow returns a Locator that knows no address yet.
func NewFollow() *Follow { return &Follow{changed: make(chan struct{})} }

// Set tells the address of the leader.
func (f *Follow) Set(addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if addr != f.addr {
		f.addr = addr
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// Addr waits until an address is known.
func (f *Follow) Addr(ctx context.Context) (string, error) {
	for {
		f.mu.Lock()
		addr, changed := f.addr, f.changed
		f.mu.Unlock()
		if addr != "" {
			return addr, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}
