package dataport

import (
	"sync"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/wire"
)

// buffer is memory for one frame, which is sent with one write. Its payload is accessible as floats and as bytes.
type buffer struct {
	frame  []byte // nil in a slot of shared memory, which has room for the payload only
	bytes  []byte // frame after the header
	floats []float32
}

// isShared reports whether the buffer is shared memory. It is false for nil.
func (b *buffer) isShared() bool { return b != nil && b.frame == nil }

func newBuffer() *buffer {
	whole := make([]float32, (wire.HeaderSize+wire.MaxPayload)/4)
	frame := floats.Bytes(whole)
	return &buffer{frame: frame, bytes: frame[wire.HeaderSize:], floats: whole[wire.HeaderSize/4:]}
}

// buffers is a bounded pool. A caller must hold at most one buffer: a caller that waits for a second one could wait forever.
// The last buffer given back is taken first, because it may still be in the cache.
type buffers struct {
	slots chan struct{} // one per buffer that is out

	mu   sync.Mutex
	free []*buffer
}

func newBuffers(bytes int64) *buffers {
	return &buffers{slots: make(chan struct{}, bytes/wire.MaxPayload)}
}

// take waits for a buffer; nil when done is closed first.
func (p *buffers) take(done <-chan struct{}) *buffer {
	select {
	case p.slots <- struct{}{}:
	case <-done:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return newBuffer()
}

func (p *buffers) give(b *buffer) {
	if b == nil || b.isShared() {
		return
	}
	p.mu.Lock()
	p.free = append(p.free, b)
	p.mu.Unlock()
	<-p.slots
}
