package stream

import (
	"net"
	"os"

	"trainmaster/pserver/sharedmem"
)

// leastShared is the least payload, in bytes, that goes through shared memory: little ones
// share a write and a read.
const leastShared = 16 << 10

// place is the slot of shared memory that a frame and its reply use.
type place int

// inFrame is the place of payloads that follow their header.
const inFrame place = -1

// memory is what a stream shares with its server. A nil one has no places.
type memory struct {
	*sharedmem.Memory
	vacant chan struct{} // one for each slot that may be written
}

func newMemory(m *sharedmem.Memory) *memory {
	vacant := make(chan struct{}, m.Slots())
	for range m.Slots() {
		vacant <- struct{}{}
	}
	return &memory{m, vacant}
}

// place is for the next frame to be sent: it, or its reply, has a payload of size bytes.
func (m *memory) place(size int) place {
	if m == nil || size < leastShared {
		return inFrame
	}
	return place(m.Next())
}

// acquire waits until the slot of the next frame may be written, or over is closed.
func (m *memory) acquire(over <-chan struct{}) error {
	select {
	case <-m.vacant:
		return nil
	case <-over:
		return net.ErrClosed
	}
}

// release is called when the reply of a frame was taken.
func (m *memory) release(at place) {
	if at != inFrame {
		m.vacant <- struct{}{}
	}
}

// source is a local connection, which brings a memory along with the first bytes.
type source struct {
	socket *net.UnixConn
	heard  bool
	memory *os.File // nil: none came
}

func (s *source) Read(p []byte) (n int, err error) {
	if s.heard {
		return s.socket.Read(p)
	}
	s.heard = true
	n, s.memory, err = sharedmem.Receive(s.socket, p)
	return n, err
}
