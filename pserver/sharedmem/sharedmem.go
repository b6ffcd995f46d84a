// Package sharedmem implements memory that a parameter server shares with a trainer of the same machine, so that payloads are not
// copied through a socket.
//
// The server creates one memory for each connection of its data socket and sends its file with the reply to the hello. The memory
// is a row of slots with room for one payload each. The n-th frame in shared memory, counted from 0, uses slot n modulo the number
// of slots, and so does its reply. A trainer with at most that many unanswered frames never writes into a slot that the server
// reads. Headers go through the socket and signal that a slot is free.
//
// Guarantees: the kernel seals the size of the memory, so a peer cannot crash the other side by shrinking it. All pages exist
// before the first frame. The memory belongs to no file system and is freed when both sides close it or end.
//
// Failure: if the system has no such memory or none is left, [Create] returns an error, and payloads go through the socket.
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

// Memory is one side's mapping of the shared memory.
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
