package trainer

import (
	"context"
	"sync"
)

// Locator says where the leader is.
type Locator interface {
	// Leader returns the leader's address; it waits until one is known, or ctx ends. moved
	// closes when another leader is known; nil: never.
	Leader(ctx context.Context) (addr string, moved <-chan struct{}, err error)
}

// At is a Locator for a master at a fixed address.
type At string

// Leader returns the address.
func (a At) Leader(context.Context) (string, <-chan struct{}, error) { return string(a), nil, nil }

// Follow is a Locator that follows announcements, such as etcdstore's watch of
// /master/addr.
type Follow struct {
	mu    sync.Mutex
	addr  string
	term  uint64
	moved chan struct{}
}

// NewFollow returns a Locator that knows no leader yet.
func NewFollow() *Follow { return &Follow{moved: make(chan struct{})} }

// Set tells who leads; "" means that nobody is known to. The same address in another term is
// another leader.
func (f *Follow) Set(addr string, term uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if addr == f.addr && term == f.term {
		return
	}
	f.addr, f.term = addr, term
	close(f.moved)
	f.moved = make(chan struct{})
}

// Leader waits until a leader is known.
func (f *Follow) Leader(ctx context.Context) (string, <-chan struct{}, error) {
	for {
		f.mu.Lock()
		addr, moved := f.addr, f.moved
		f.mu.Unlock()
		if addr != "" {
			return addr, moved, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return "", nil, context.Cause(ctx)
		}
	}
}
