package dataport

import (
	"os"
	"sync/atomic"

	core "trainmaster/pserver/shard"
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
	piece []float32 // of core.PieceElements, the server's own
}

// values are the first n floats of the payload in buf.
func (c *conn) values(buf *buffer, n int) core.Values {
	v := core.Values{Floats: buf.floats[:n]}
	if buf.isShared() {
		v.Piece = c.shared.piece
	}
	return v
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
	s := &shared{Memory: memory, piece: make([]float32, core.PieceElements)}
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
