package pserver

import (
	"os"
	"sync/atomic"

	"trainmaster/pserver/sharedmem"
	"trainmaster/pserver/wire"
)

// sharedSlots is the number of payloads that a trainer of the same machine can have in transit in shared memory. The trainer writes
// the next payload while the server applies one, and all slots fit the processor's cache.
const sharedSlots = 4

// shared is the memory of a connection.
type shared struct {
	*sharedmem.Memory
	slots []*buffer
	piece []float32 // of pieceElements, the server's own
}

// elements are the floats of a frame's payload. The trainer can change those in shared memory at any time, so that a check
// there says nothing about the next read: whatever is kept or applied is checked as copied.
type elements struct {
	floats []float32
	piece  []float32 // memory for the copy of a piece; nil: the floats are not shared
}

// elements are the first n floats of the payload in buf.
func (c *conn) elements(buf *buffer, n int) elements {
	e := elements{floats: buf.floats[:n]}
	if buf.isShared() {
		e.piece = c.shared.piece
	}
	return e
}

// at returns the floats from lo to hi, at most pieceElements, in memory that the trainer cannot change, and whether they are finite.
func (e elements) at(lo, hi int) (piece []float32, isFinite bool) {
	//guard:shared-gradient-copied
	if e.piece == nil {
		return e.floats[lo:hi], true // they were checked
	}
	piece = e.piece[:hi-lo]
	return piece, wire.CopyFinite(piece, e.floats[lo:hi])
}

// copyTo copies all floats and reports whether the copy is finite.
func (e elements) copyTo(dst []float32) (isFinite bool) {
	if e.piece == nil {
		copy(dst, e.floats)
		return true // they were checked
	}
	return wire.CopyFinite(dst, e.floats)
}

// changed is the answer to a trainer that wrote into its slot of shared memory before the reply.
func changed(op wire.Op, what string) *wire.Fault {
	return wire.Faultf(wire.Malformed, "%v for %s: elements in shared memory are no longer finite: the trainer changed them before the reply", op, what)
}

// sharedPool bounds the shared memory of all connections together.
type sharedPool struct {
	most int64 // bytes
	used atomic.Int64
}

// take makes the memory of a connection; nil when there is no room for it, or no such memory.
func (p *sharedPool) take() (*shared, *os.File, error) {
	const size = sharedSlots * sharedmem.SlotBytes
	//guard:shared-memory-limit
	if p.used.Add(size) > p.most {
		p.used.Add(-size)
		return nil, nil, nil
	}
	memory, file, err := sharedmem.Create(sharedSlots)
	if err != nil {
		p.used.Add(-size)
		return nil, nil, err
	}
	s := &shared{Memory: memory, piece: make([]float32, pieceElements)}
	for i := range memory.Slots() {
		s.slots = append(s.slots, &buffer{bytes: memory.Slot(i), floats: memory.Floats(i)})
	}
	return s, file, nil
}

func (p *sharedPool) give(s *shared) {
	p.used.Add(-int64(s.Slots()) * sharedmem.SlotBytes)
	s.Close() //nolint:errcheck // nothing can be done about it
}

// attachShared completes the reply to a hello: it offers memory through the socket, or attaches memory if the request came through
// the socket. Without memory, frames carry the payloads.
func (c *conn) attachShared(r *reply) {
	switch {
	case c.socket == nil:
	case c.head.Flags&wire.Shared == 0:
		r.head.Argument = sharedSlots
	default:
		memory, file, err := c.sharedPool.take()
		if err != nil {
			c.log.WithError(err).Info("no memory to share with a trainer: its payloads go through the data socket")
		}
		if memory == nil {
			return
		}
		c.shared, r.memory = memory, file
		r.head.Flags |= wire.Shared
		r.head.Argument = uint32(memory.Slots())
	}
}

// releaseShared frees the memory of the connection. It must be called after the last frame and reply.
func (c *conn) releaseShared() {
	if c.shared != nil {
		c.sharedPool.give(c.shared)
	}
}

// selectSlot sets c.slot to the slot of the frame in c.head, nil if the payload is not in shared memory.
func (c *conn) selectSlot() *wire.Fault {
	c.slot = nil
	switch {
	case c.head.Flags&wire.Shared == 0:
	case c.shared != nil:
		c.slot = c.shared.slots[c.shared.Next()]
	//guard:shared-memory-requested
	case c.head.Op != wire.Hello || sharedmem.Through(c.nc) == nil:
		return wire.Faultf(wire.Malformed, "%v in shared memory, on a connection that has none", c.head.Op)
	}
	return nil
}
