package stream

import (
	"net"
	"os"

	"trainmaster/pserver/sharedmem"
)

// leastShared is the least payload, in bytes, that goes through shared memory: little ones
// share a write and a read.
const leastShared = 16 << 10

// inFrame is the slot of payloads that follow their header.
const inFrame = -1

// memory is what a stream shares with its server. Frames use its slots one after the other.
type memory struct {
	*sharedmem.Memory
	vacant chan struct{} // one for each slot that may be written
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
