package grpcserver

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"

	"trainmaster/internal/largemsg"
)

// maxUncounted is the size of the largest message, in bytes, that is not counted while it arrives. The streams of a connection have at most
// 1 MiB of them.
const maxUncounted = 4 << 10

// listener counts the bytes of messages that are arriving on its connections. gRPC accepts the bytes of an incomplete message on each stream
// of each connection, up to MaxMessage.
type listener struct {
	net.Listener
	large *largemsg.Messages
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, large: l.large, host: largemsg.HostOf(c.RemoteAddr()), streams: map[uint32]*arriving{}, in: frames{skip: prefaceSize}}, nil
}

// conn reads the frames of HTTP/2 of both directions. The client opens the streams. A stream ends with the first end of a side, because
// the server does not read what follows.
type conn struct {
	net.Conn
	large *largemsg.Messages
	host  string

	in, out frames // of the goroutine that reads, and of the goroutine that writes

	mu      sync.Mutex
	streams map[uint32]*arriving // open streams
}

// arriving is the message of a stream that is arriving.
type arriving struct {
	head     [5]byte // compression, and the size in four bytes
	headSize int     // bytes of head that have arrived
	size     int
	missing  int
	counted  *largemsg.Message // nil: no bytes are counted
}

// Read counts the bytes of large messages. If there is no memory for them, the connection ends.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		var data []byte
		if data, rest = c.in.next(rest); len(data) > 0 {
			if err := c.arrived(c.in.stream, data); err != nil {
				c.Conn.Close()
				return 0, fmt.Errorf("message from %s: %w", c.host, err)
			}
		}
		if c.in.ended() {
			c.framed(&c.in)
		}
	}
	return n, err
}

// Write observes the end of streams.
func (c *conn) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		_, rest = c.out.next(rest)
		if c.out.ended() && c.out.endsStream() {
			c.mu.Lock()
			c.endLocked(c.out.stream)
			c.mu.Unlock()
		}
	}
	return c.Conn.Write(p)
}

// Close forgets all messages.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.streams {
		c.endLocked(id)
	}
	return err
}

// framed opens and ends streams after a frame of the client.
func (c *conn) framed(f *frames) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case f.endsStream():
		c.endLocked(f.stream)
	case f.kind == frameHeaders && c.streams[f.stream] == nil:
		c.streams[f.stream] = &arriving{}
	}
}

func (c *conn) endLocked(id uint32) {
	if a := c.streams[id]; a != nil && a.counted != nil {
		c.large.End(a.counted)
	}
	delete(c.streams, id)
}

// arrived takes bytes of the messages of a stream.
func (c *conn) arrived(id uint32, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.streams[id]
	if a == nil {
		return nil // the server has ended the stream
	}
	for len(data) > 0 {
		if a.missing == 0 {
			n := copy(a.head[a.headSize:], data)
			a.headSize, data = a.headSize+n, data[n:]
			if a.headSize == len(a.head) {
				a.headSize, a.size = 0, int(binary.BigEndian.Uint32(a.head[1:]))
				a.missing = a.size
			}
			continue
		}
		n := min(len(data), a.missing)
		a.missing, data = a.missing-n, data[n:]
		switch {
		case a.missing == 0 && a.counted != nil:
			c.large.End(a.counted)
			a.counted = nil
		case a.missing > 0 && a.size > maxUncounted:
			if a.counted == nil {
				a.counted = &largemsg.Message{Host: c.host, Conn: c.Conn}
			}
			//guard:grpc-arriving-bytes-counted
			if err := c.large.Grow(a.counted, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// What HTTP/2 (RFC 9113) begins with, and its frames.
const (
	prefaceSize = 24 // PRI * HTTP/2.0 ...

	frameData    = 0
	frameHeaders = 1
	frameReset   = 3

	flagEndStream = 0x1
	flagPadded    = 0x8
)

// frames finds the frames in a sequence of bytes.
type frames struct {
	skip int // bytes before the next header

	head     [9]byte
	headSize int // bytes of head that have arrived

	kind, flags byte
	stream      uint32
	padded      bool // the next byte is the size of the padding
	data        int  // bytes of data that follow in the frame
}

// next takes bytes up to the end of a part of a frame, and returns the data of the part, and the remaining bytes.
func (f *frames) next(p []byte) (data, rest []byte) {
	switch {
	case f.padded:
		f.padded = false
		padding := min(int(p[0]), f.data)
		f.data, f.skip = f.data-padding, padding
		return nil, p[1:]
	case f.data > 0:
		n := min(f.data, len(p))
		f.data -= n
		return p[:n], p[n:]
	case f.skip > 0:
		n := min(f.skip, len(p))
		f.skip -= n
		return nil, p[n:]
	}
	if f.headSize == len(f.head) {
		f.headSize = 0
	}
	n := copy(f.head[f.headSize:], p)
	f.headSize += n
	if f.headSize == len(f.head) {
		size := int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
		f.kind, f.flags, f.stream = f.head[3], f.head[4], binary.BigEndian.Uint32(f.head[5:])&^(1<<31)
		f.skip, f.data, f.padded = size, 0, false
		if f.kind == frameData {
			f.skip, f.data = 0, size
			if f.padded = f.flags&flagPadded != 0 && size > 0; f.padded {
				f.data--
			}
		}
	}
	return nil, p[n:]
}

// ended reports whether a frame has just ended.
func (f *frames) ended() bool {
	return f.headSize == len(f.head) && f.data == 0 && f.skip == 0 && !f.padded
}

// endsStream reports whether a frame ends the stream of its sender.
func (f *frames) endsStream() bool {
	return f.kind == frameReset || f.kind <= frameHeaders && f.flags&flagEndStream != 0
}
