package pserver

import "trainmaster/pserver/wire"

// buffer is room for the payload of one frame, seen as floats and as bytes.
type buffer struct {
	floats []float32
	bytes  []byte
}

// buffers is a bounded pool. Whoever takes a buffer holds no other one, so
// that waiting for one never waits for itself.
type buffers struct {
	free  chan *buffer
	slots chan struct{} // one per buffer in existence
}

func newBuffers(bytes int64) *buffers {
	n := bytes / wire.MaxPayload
	return &buffers{free: make(chan *buffer, n), slots: make(chan struct{}, n)}
}

// take waits for a buffer; nil when done is closed first.
func (p *buffers) take(done <-chan struct{}) *buffer {
	select {
	case b := <-p.free:
		return b
	default:
	}
	select {
	case b := <-p.free:
		return b
	case p.slots <- struct{}{}:
		floats := make([]float32, wire.BlockElements)
		return &buffer{floats: floats, bytes: wire.FloatBytes(floats)}
	case <-done:
		return nil
	}
}

func (p *buffers) give(b *buffer) {
	if b != nil {
		p.free <- b
	}
}
