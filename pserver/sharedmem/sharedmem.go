// Package sharedmem is the memory that a parameter server shares with a trainer of the
// same machine, so that payloads are not copied through a socket.
//
// The server makes it, one for each connection through its data socket, and the kernel
// carries it there with the reply to the hello. It is a row of slots, each with room for one
// payload. The n-th frame that uses it, counted from 0, uses slot n modulo their
// number, and so does the reply to that frame: a trainer that never has more of these frames
// unanswered than there are slots writes into none that the server still reads. Headers go
// through the socket as ever, which tells each side when the other is done with a slot.
//
// Guarantees: nobody can change the size of the memory (the kernel seals it), so that a peer cannot make
// the other side fail; the pages are there before the first frame. It belongs to no file
// system and is gone when both sides have let go, or were killed. Failure: where the system
// has no such memory, or has none left, [Create] says so, and payloads go through the socket.
package sharedmem

import (
	"fmt"
	"net"
	"unsafe"

	"trainmaster/pserver/wire"
)

// SlotBytes is the size of a slot.
const SlotBytes = wire.MaxPayload

// MaxSlots bounds the slots of one connection.
const MaxSlots = 64

// Memory is one side's view of what is shared.
type Memory struct {
	bytes []byte
	next  uint64
}

// Slots is the number of slots.
func (m *Memory) Slots() int { return len(m.bytes) / SlotBytes }

// Next is the slot of the next frame. One goroutine calls it.
func (m *Memory) Next() int {
	slot := int(m.next % uint64(m.Slots()))
	m.next++
	return slot
}

// Slot is the memory of a slot.
func (m *Memory) Slot(i int) []byte { return m.bytes[i*SlotBytes : (i+1)*SlotBytes : (i+1)*SlotBytes] }

// Floats is the memory of a slot, as floats.
func (m *Memory) Floats(i int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(m.Slot(i)))), SlotBytes/4)
}

// Through is the unix socket below a connection, nil if there is none.
func Through(nc net.Conn) *net.UnixConn {
	if outer, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = outer.NetConn()
	}
	socket, _ := nc.(*net.UnixConn)
	return socket
}

func checkSlots(slots int) error {
	if slots < 1 || slots > MaxSlots {
		return fmt.Errorf("shared memory of %d slots: expected 1 to %d", slots, MaxSlots)
	}
	return nil
}
