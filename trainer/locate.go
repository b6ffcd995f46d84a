package trainer

import (
	"context"
	"sync"
)

// Locator finds the leader.
type Locator interface {
	// Leader returns the address of the leader. It waits until the address is known or ctx ends.
	// moved closes when another leader is known; nil: never. An error other than that of ctx ends
	// the call: io.EOF and ErrJobFailed mean that the job has ended and has no master.
	Leader(ctx context.Context) (addr string, moved <-chan struct{}, err error)
}

// At is a Locator for a master at a fixed address.
type At string

// Leader returns the address.
func (a At) Leader(context.Context) (string, <-chan struct{}, error) { return string(a), nil, nil }

// Follow is a Locator that follows announcements, such as etcdstore's watch of
// /master/addr.
type Follow struct {
	mu        sync.Mutex
	addr      string
	term      uint64
	endReason error // reason for which no further leader is expected
	moved     chan struct{}
}

// NewFollow returns a Locator that knows no leader yet.
func NewFollow() *Follow { return &Follow{moved: make(chan struct{})} }

// Set sets the address of the leader; "" means that no leader is known. The same address in
// another term is another leader.
func (f *Follow) Set(addr string, term uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if addr == f.addr && term == f.term {
		return
	}
	f.addr, f.term, f.endReason = addr, term, nil
	f.tellLocked()
}

// End makes calls of Leader return an error, which is io.EOF or ErrJobFailed.
func (f *Follow) End(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endReason = why
	f.tellLocked()
}

func (f *Follow) tellLocked() {
	close(f.moved)
	f.moved = make(chan struct{})
}

// Leader waits until a leader is known, or until End is called.
func (f *Follow) Leader(ctx context.Context) (string, <-chan struct{}, error) {
	for {
		f.mu.Lock()
		addr, endReason, moved := f.addr, f.endReason, f.moved
		f.mu.Unlock()
		switch {
		case addr != "":
			return addr, moved, nil
		case endReason != nil:
			return "", nil, endReason
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return "", nil, context.Cause(ctx)
		}
	}
}
