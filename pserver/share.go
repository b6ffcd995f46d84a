package pserver

import (
	"os"
	"sync/atomic"

	"trainmaster/pserver/sharedmem"
	"trainmaster/pserver/wire"
)

// sharedSlots is how many payloads a trainer of the same machine may have on their way
// without copies through the socket: while one is applied the next is written, and all of
// them stay in the processor's cache.
const sharedSlots = 4

// shared is the memory of a connection.
type shared struct {
	*sharedmem.Memory
	slots []*buffer
}

// commons bounds the memory of all connections together.
type commons struct {
	most int64 // bytes
	used atomic.Int64
}

// take makes the memory of a connection; nil when there is no room for it, or no such memory.
func (p *commons) take() (*shared, *os.File, error) {
	const size = sharedSlots * sharedmem.SlotBytes
	if p.used.Add(size) > p.most {
		p.used.Add(-size)
		return nil, nil, nil
	}
	memory, file, err := sharedmem.Create(sharedSlots)
	if err != nil {
		p.used.Add(-size)
		return nil, nil, err
	}
	s := &shared{Memory: memory}
	for i := range memory.Slots() {
		s.slots = append(s.slots, &buffer{bytes: memory.Slot(i), floats: memory.Floats(i)})
	}
	return s, file, nil
}

func (p *commons) give(s *shared) {
	p.used.Add(-int64(s.Slots()) * sharedmem.SlotBytes)
	s.Close() //nolint:errcheck // nothing can be done about it
}

// share completes the reply to a hello: it says that memory can be had through the socket,
// or gives it to who asks there. Whoever gets none has payloads in the frames.
func (c *conn) share(r *reply) {
	switch {
	case c.socket == nil:
	case c.head.Flags&wire.Shared == 0:
		r.head.Argument = sharedSlots
	default:
		memory, file, err := c.commons.take()
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

// unshare is called when nobody handles a frame or sends a reply any more.
func (c *conn) unshare() {
	if c.shared != nil {
		c.commons.give(c.shared)
	}
}

// takeTurn finds the slot of the frame in c.head, if it has one.
func (c *conn) takeTurn() *wire.Fault {
	c.slot = nil
	switch {
	case c.head.Flags&wire.Shared == 0:
	case c.shared != nil:
		c.slot = c.shared.slots[c.shared.Next()]
	case c.head.Op != wire.Hello || sharedmem.Through(c.nc) == nil:
		return wire.Faultf(wire.Malformed, "%v in shared memory, on a connection that has none", c.head.Op)
	}
	return nil
}
