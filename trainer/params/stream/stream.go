// Package stream implements one data connection to a parameter server.
//
// A caller connects with [Dial] and exchanges a slice of frames with [Stream.Exchange]: a goroutine fills and writes the frames while
// the caller's goroutine takes the replies. On the machine of the server, large payloads are in shared memory.
//
// An exchange fails with a [*wire.Fault] if the server refused a frame, and with another error if the connection broke. The stream
// does not repeat a frame. A Stream is not safe for concurrent use.
package stream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"trainmaster/pserver/wire"
)

const (
	readAhead     = 4 << 10  // headers and little blocks share a read, others go straight to their tensor
	batchedBytes  = 64 << 10 // little blocks that are gathered into one write
	batchedFrames = 64
	pieceBytes    = 64 << 10 // of a payload, read and then summed while in the cache
)

// Config is how a trainer introduces itself to one server.
type Config struct {
	Ordinal     uint32
	Incarnation uint64
	JobID       string // in hexadecimal digits; "": not stated
	Shard       int
	Digest      [32]byte       // of the placement
	Placement   uint32         // its epoch
	Sequence    *atomic.Uint64 // of the last frame, shared by all streams of a trainer
	Timeout     time.Duration  // for a reply
}

// Progress is the state of a frame: whether its reply was taken.
type Progress struct {
	Done    bool   // since the start of the call
	Version uint32 // of the last reply, also of an earlier call
}

// Frame is one request and its reply. Exchange sets the sequence, the epochs, the flags and the length in Head, and the progress. The
// frames of a call usually share the functions, which distinguish them by Index.
type Frame struct {
	*Progress
	Head  wire.Header
	Index int
	Size  int // the larger one of payload and reply, in bytes

	Payload  []byte        // does not change until the exchange ends
	Sum      wire.Checksum // of Payload
	Distance wire.Distance // over Payload
	// Fill returns the payload of a frame without Payload, valid until the next Fill. body is shared memory for it; nil if the
	// payload follows the header.
	Fill func(f *Frame, body []byte) []byte
	// Take reads the payload of the reply.
	Take func(f *Frame, r *Reply) error

	at int // slot of shared memory for the payload and the reply, or inFrame
}

// Stream is one data connection.
type Stream struct {
	Epoch    uint16 // of the shard
	JobEpoch uint16

	cfg       Config
	nc        net.Conn
	timeout   time.Duration
	placement uint32  // epoch of the server's placement
	memory    *memory // shared with the server, nil: payloads go through the connection
	reply     Reply

	// The writer's.
	headers [batchedFrames][wire.HeaderSize]byte
	pieces  [][]byte
}

func newStream(nc net.Conn, cfg Config, timeout time.Duration) *Stream {
	return &Stream{cfg: cfg, nc: nc, timeout: timeout, reply: Reply{r: bufio.NewReaderSize(nc, readAhead)}}
}

// bound makes the connection fail as soon as ctx ends, until the function
// returned is called.
func (s *Stream) bound(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { s.nc.SetDeadline(time.Unix(1, 0)) }) //nolint:errcheck // a closed one fails as well
}

// Close ends the connection. No exchange may be in progress.
func (s *Stream) Close() error {
	err := s.nc.Close()
	if s.memory != nil {
		err = errors.Join(err, s.memory.Close())
	}
	return err
}

// arm sets a deadline for the next step. It must not undo what bound did.
func (s *Stream) arm(ctx context.Context, set func(time.Time) error) error {
	if err := set(time.Now().Add(s.timeout)); err != nil {
		return err
	}
	return ctx.Err()
}

// Exchange sends frames and concurrently takes the replies. The error is the first refusal, or the connection's.
func (s *Stream) Exchange(ctx context.Context, frames []Frame) error {
	defer s.bound(ctx)()
	for i := range frames {
		f := &frames[i]
		f.Head.Incarnation, f.Head.Placement, f.Head.ShardEpoch, f.Head.JobEpoch = s.cfg.Incarnation, s.placement, s.Epoch, s.JobEpoch
		f.Head.Sequence, f.at = s.cfg.Sequence.Add(1), inFrame
		if s.memory != nil && f.Size >= leastShared {
			f.at, f.Head.Flags = s.memory.Next(), wire.Shared
		}
	}
	var (
		sender  sync.WaitGroup
		sendErr error
	)
	over := make(chan struct{}) // closes when no more replies are taken
	sender.Go(func() {
		if sendErr = s.send(ctx, frames, over); sendErr != nil {
			s.nc.Close()
		}
	})
	err := s.receive(ctx, frames)
	close(over)
	var fault *wire.Fault
	if err != nil && (!errors.As(err, &fault) || fault.Code.Fatal()) {
		s.nc.Close()
	}
	sender.Wait()
	if fault != nil {
		return fault
	}
	if err == nil || errors.Is(err, net.ErrClosed) && sendErr != nil {
		return sendErr // the sender closed the connection
	}
	return err
}

// send writes frames. If the shared memory is full, send waits for the replies to earlier frames.
func (s *Stream) send(ctx context.Context, frames []Frame, over <-chan struct{}) error {
	count, size := 0, 0
	for i := range frames {
		f := &frames[i]
		var body []byte
		if f.at != inFrame {
			if len(s.memory.vacant) == 0 { // until the frames before it are answered
				if err := s.flush(ctx); err != nil {
					return err
				}
				count, size = 0, 0
			}
			select {
			case <-s.memory.vacant:
			case <-over:
				return net.ErrClosed
			}
			body = s.memory.Slot(f.at)
		}
		payload := f.Payload
		switch {
		case f.Fill != nil:
			payload = f.Fill(f, body)
		case f.Head.DType == wire.BFloat16 && body != nil:
			copy(body[len(payload):], payload) // the server widens it in place
		default:
			copy(body, payload)
		}
		n := len(payload)
		f.Head.Length = uint32(n)
		raw := &s.headers[count]
		f.Head.Encode(raw)
		if n > 0 && f.Fill == nil {
			wire.Begin(raw).Then(f.Sum, f.Distance).Store(raw)
		} else {
			wire.Seal(raw, payload)
		}
		s.pieces = append(s.pieces, raw[:])
		if n > 0 && body == nil {
			s.pieces = append(s.pieces, payload)
		}
		count, size = count+1, size+n
		if count == batchedFrames || size >= batchedBytes || n > 0 && f.Fill != nil {
			if err := s.flush(ctx); err != nil {
				return err
			}
			count, size = 0, 0
		}
	}
	return s.flush(ctx)
}

func (s *Stream) flush(ctx context.Context) error {
	if len(s.pieces) == 0 {
		return nil
	}
	if err := s.arm(ctx, s.nc.SetWriteDeadline); err != nil {
		return err
	}
	buffers := net.Buffers(s.pieces)
	_, err := buffers.WriteTo(s.nc)
	s.pieces = s.pieces[:0]
	return err
}

// receive takes a reply to every frame, until the connection ends.
func (s *Stream) receive(ctx context.Context, frames []Frame) error {
	var refused *wire.Fault
	for i := range frames {
		f := &frames[i]
		err := s.header(ctx, f.Head.Sequence, f.at)
		if err == nil {
			err = f.Take(f, &s.reply)
		}
		if f.at != inFrame {
			s.memory.vacant <- struct{}{}
		}
		var fault *wire.Fault
		switch {
		case err == nil:
			f.Done, f.Version = true, s.reply.Head.Version
		case errors.As(err, &fault):
			if refused == nil || refused.Code == wire.Wait {
				refused = fault
			}
			if fault.Code.Fatal() {
				return fault
			}
		default:
			return err
		}
	}
	if refused != nil {
		return refused
	}
	return nil
}

// header takes the header of the reply to a frame. at is the slot of the frame. A refusal, taken whole, is a *wire.Fault.
func (s *Stream) header(ctx context.Context, sequence uint64, at int) error {
	r := &s.reply
	if r.r.Buffered() < wire.HeaderSize {
		if err := s.arm(ctx, s.nc.SetReadDeadline); err != nil {
			return err
		}
	}
	if _, err := io.ReadFull(r.r, r.raw[:]); err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	if err := r.Head.Decode(&r.raw); err != nil {
		return fmt.Errorf("reply: %v", err) //nolint:errorlint // our finding, not the server's refusal
	}
	if r.Head.Flags&wire.Reply == 0 || r.Head.Sequence != sequence {
		return fmt.Errorf("reply to frame %d with flags %#x, expected one to %d", r.Head.Sequence, uint8(r.Head.Flags), sequence)
	}
	r.rest = nil
	switch {
	case r.Head.Flags&wire.Error != 0:
		text, err := r.text(wire.MaxMessage)
		if err != nil {
			return err
		}
		return &wire.Fault{Code: wire.Code(r.Head.Argument), Message: string(text), Version: r.Head.Version}
	case r.Head.Flags&wire.Shared == 0 || r.Head.Op == wire.Hello:
	case at == inFrame:
		return fmt.Errorf("reply to %v is in shared memory, the frame was not", r.Head.Op)
	default:
		r.rest = s.memory.Slot(at)
	}
	return nil
}
