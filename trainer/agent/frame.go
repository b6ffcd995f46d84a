package agent

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Bounds of a connection.
const (
	MaxRequest    = 1 << 20  // bytes of the JSON of a request
	MaxReply      = 64 << 20 // bytes of the JSON of a reply
	maxUnanswered = 64       // requests that are taken and not answered

	frameHead = 4
)

var errFrame = errors.New("invalid frame")

// stream is a connection with frames. One goroutine reads; any may write.
type stream struct {
	conn   *net.UnixConn
	reader *bufio.Reader
	buf    []byte

	writing sync.Mutex
}

func newStream(conn *net.UnixConn) *stream {
	return &stream{conn: conn, reader: bufio.NewReaderSize(conn, 64<<10)}
}

// read returns the JSON of the next request. It is valid until the next call.
func (s *stream) read() ([]byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(s.reader, head[:]); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	//guard:agent-request-size
	if size > MaxRequest {
		return nil, fmt.Errorf("%w: expected at most %d bytes, found %d", errFrame, MaxRequest, size)
	}
	if cap(s.buf) < int(size) {
		s.buf = make([]byte, size)
	}
	s.buf = s.buf[:size]
	if _, err := io.ReadFull(s.reader, s.buf); err != nil {
		return nil, fmt.Errorf("%w: the connection ended in it: %w", errFrame, err)
	}
	return s.buf, nil
}

// write sends the reply to a request, and the descriptor of its memory with the first byte.
func (s *stream) write(id uint64, r reply) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	//guard:numbers-grow-in-the-order-of-replies
	if r.number != nil {
		r.number()
	}
	body, err := r.encode(id)
	if err != nil {
		return err
	}
	if len(body) > MaxReply {
		return fmt.Errorf("%w: a reply of %d bytes, at most %d are sent", errFrame, len(body), MaxReply)
	}
	frame := append(binary.LittleEndian.AppendUint32(make([]byte, 0, frameHead+len(body)), uint32(len(body))), body...)
	if r.memory != nil {
		sent, err := sendMemory(s.conn, frame, r.memory)
		if err != nil {
			return err
		}
		frame = frame[sent:]
	}
	_, err = s.conn.Write(frame)
	return err
}
