package params

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"trainmaster/pserver/wire"
)

const (
	readAhead     = 4 << 10  // headers and little blocks share a read, others go straight to their tensor
	batchedBytes  = 64 << 10 // little blocks that are gathered into one write
	batchedFrames = 64
	pieceBytes    = 64 << 10 // of a payload, read and then summed while in the cache
)

// stream is one data connection.
type stream struct {
	nc      net.Conn
	r       *bufio.Reader
	timeout time.Duration
	epoch   uint16 // of the shard
	place   uint32 // epoch of the placement
	job     uint16 // epoch of the job

	memory *memory // shared with the server, nil: payloads go through the connection

	raw  [wire.HeaderSize]byte // of the reply being read
	head wire.Header
	rest []byte  // of its payload, when that is in the shared memory
	due  []frame // of the exchange under way, in order

	scratch []byte // a piece of bfloat16

	// The writer's.
	headers [batchedFrames][wire.HeaderSize]byte
	pieces  [][]byte

	outgoing, incoming []float32 // a frame of rows being sent, the rows of one being read
}

// frame is a block that an exchange sends, and expects a reply for.
type frame struct {
	slot     int
	sequence uint64
	place    place
}

func newStream(nc net.Conn, timeout time.Duration) *stream {
	return &stream{nc: nc, r: bufio.NewReaderSize(nc, readAhead), timeout: timeout}
}

// bound makes the connection fail as soon as ctx ends, until the function
// returned is called.
func (s *stream) bound(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { s.nc.SetDeadline(time.Unix(1, 0)) }) //nolint:errcheck // a closed one fails as well
}

// close ends the connection. No exchange is under way.
func (s *stream) close() error { return errors.Join(s.nc.Close(), s.memory.close()) }

// hello introduces the trainer and returns the offer of the server, nil without one. It stores the epochs of the shard. A server
// refuses another identity than meant; flags request more.
func (s *stream) hello(ctx context.Context, l *link, meant *wire.Identity, flags wire.Flags) (*wire.Offer, error) {
	defer s.bound(ctx)()
	digest := l.client.table.Digest()
	payload := digest[:]
	if meant != nil {
		payload = append(payload, meant[:]...)
	}
	head := wire.Header{
		Op: wire.Hello, Flags: flags, Block: uint64(l.client.cfg.Ordinal), Argument: uint32(l.index), Placement: l.client.table.Epoch,
		Incarnation: l.client.cfg.Incarnation, Sequence: l.client.sequence.next(), Length: uint32(len(payload)),
	}
	raw := &s.headers[0]
	head.Encode(raw)
	wire.Seal(raw, payload)
	if err := s.arm(ctx, s.nc.SetWriteDeadline); err != nil {
		return nil, err
	}
	if _, err := (&net.Buffers{raw[:], payload}).WriteTo(s.nc); err != nil {
		return nil, err
	}
	if err := s.header(ctx, head.Sequence, inFrame); err != nil {
		return nil, err
	}
	s.epoch, s.place, s.job = s.head.ShardEpoch, s.head.Placement, s.head.JobEpoch
	if err := l.checkEpoch(uint32(s.job)); err != nil {
		return nil, err
	}
	return s.offer()
}

// offer is the payload of a hello's reply, nil if there is none.
func (s *stream) offer() (*wire.Offer, error) {
	if s.head.Length > wire.MaxOffer {
		return nil, fmt.Errorf("%v reply has %d bytes, the limit is %d", s.head.Op, s.head.Length, wire.MaxOffer)
	}
	payload := make([]byte, s.head.Length)
	if err := s.payload(payload); err != nil || len(payload) == 0 {
		return nil, err
	}
	offer, err := wire.ParseOffer(payload)
	if err != nil {
		return nil, fmt.Errorf("%v reply: %w", s.head.Op, err)
	}
	return &offer, nil
}

// arm sets a deadline for the next step. It must not undo what bound did.
func (s *stream) arm(ctx context.Context, set func(time.Time) error) error {
	if err := set(time.Now().Add(s.timeout)); err != nil {
		return err
	}
	return ctx.Err()
}

// exchangeBlocks sends the pending blocks of a call and takes the replies. Blocks
// that were acknowledged are no longer pending.
func (s *stream) exchangeBlocks(ctx context.Context, l *link, call call) error {
	s.due = s.due[:0]
	for i := range l.slots {
		if slot := &l.slots[i]; slot.pending {
			size := len(slot.payload(call))
			if call.dst != nil {
				size = max(size, wireDTypes[l.client.cfg.WireDType].Size()*slot.Len)
			}
			s.due = append(s.due, frame{i, l.client.sequence.next(), s.memory.place(size)})
		}
	}
	return s.exchange(ctx, func(over <-chan struct{}) error { return s.send(ctx, l, call, over) }, func() error { return s.collect(ctx, l, call) })
}

// exchange sends frames and takes the replies, both at the same time; over closes when no
// more are taken. The error is the first refusal, or the connection's.
func (s *stream) exchange(ctx context.Context, send func(over <-chan struct{}) error, collect func() error) error {
	defer s.bound(ctx)()
	var (
		sender  sync.WaitGroup
		sendErr error
	)
	over := make(chan struct{})
	sender.Go(func() {
		if sendErr = send(over); sendErr != nil {
			s.nc.Close()
		}
	})
	err := collect()
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

// collect takes a reply for every block that was sent.
func (s *stream) collect(ctx context.Context, l *link, call call) error {
	var refused *wire.Fault
	for _, f := range s.due {
		slot := &l.slots[f.slot]
		err := s.receive(ctx, f.sequence, f.place, slot.of(call.dst), wireDTypes[l.client.cfg.WireDType])
		s.memory.release(f.place)
		var fault *wire.Fault
		switch {
		case err == nil:
			slot.pending, slot.version = false, s.head.Version
			switch {
			case call.dst != nil:
				slot.at = s.head.Version
				l.client.seen.note(s.head.Version)
			case call.op == wire.Push && s.head.Flags&wire.Duplicate == 0: // whose update may be in it already
				slot.at++
			}
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

// receive takes one reply; its payload, elements of dtype, goes to dst. A refusal is a *wire.Fault.
func (s *stream) receive(ctx context.Context, sequence uint64, at place, dst []float32, dtype wire.DType) error {
	if err := s.header(ctx, sequence, at); err != nil {
		return err
	}
	if expected := dtype.Size() * len(dst); int(s.head.Length) != expected {
		return fmt.Errorf("%v reply has %d bytes of %v, expected %d of %v", s.head.Op, s.head.Length, s.head.DType, expected, dtype)
	}
	if s.head.DType == wire.BFloat16 {
		return s.receiveNarrow(dst)
	}
	return s.payload(wire.FloatBytes(dst))
}

// header takes the header of a reply to the frame at a place. A refusal, taken whole, is a *wire.Fault.
func (s *stream) header(ctx context.Context, sequence uint64, at place) error {
	if s.r.Buffered() < wire.HeaderSize {
		if err := s.arm(ctx, s.nc.SetReadDeadline); err != nil {
			return err
		}
	}
	if _, err := io.ReadFull(s.r, s.raw[:]); err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	if err := s.head.Decode(&s.raw); err != nil {
		return fmt.Errorf("reply: %v", err) //nolint:errorlint // our finding, not the server's refusal
	}
	if s.head.Flags&wire.Reply == 0 || s.head.Sequence != sequence {
		return fmt.Errorf("reply to frame %d with flags %#x, expected one to %d", s.head.Sequence, uint8(s.head.Flags), sequence)
	}
	s.rest = nil
	switch {
	case s.head.Flags&wire.Error != 0:
		return s.refusal()
	case s.head.Flags&wire.Shared == 0 || s.head.Op == wire.Hello:
	case at == inFrame:
		return fmt.Errorf("reply to %v is in shared memory, the frame was not", s.head.Op)
	default:
		s.rest = s.memory.Slot(int(at))
	}
	return nil
}

// read takes the next bytes of a payload.
func (s *stream) read(p []byte) error {
	if s.rest != nil {
		s.rest = s.rest[copy(p, s.rest):]
		return nil
	}
	if _, err := io.ReadFull(s.r, p); err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	return nil
}

// payload reads and sums the payload piece by piece, while it is in the cache.
func (s *stream) payload(payload []byte) error {
	sum := wire.Begin(&s.raw)
	for len(payload) > 0 {
		n := min(len(payload), pieceBytes)
		if err := s.read(payload[:n]); err != nil {
			return err
		}
		sum = sum.Add(payload[:n])
		payload = payload[n:]
	}
	return s.check(sum)
}

// check compares the sum of a payload with the sum in its header.
func (s *stream) check(sum wire.Checksum) error {
	if err := sum.Check(&s.raw); err != nil {
		return fmt.Errorf("reply: %v", err) //nolint:errorlint // our finding, not the server's refusal
	}
	return nil
}

func (s *stream) refusal() error {
	if s.head.Length > wire.MaxMessage {
		return fmt.Errorf("refusal has a text of %d bytes, the limit is %d", s.head.Length, wire.MaxMessage)
	}
	text := make([]byte, s.head.Length)
	if err := s.payload(text); err != nil {
		return err
	}
	return &wire.Fault{Code: wire.Code(s.head.Argument), Message: string(text), Version: s.head.Version}
}

// send writes the frames that are due, those in shared memory as far as there is room.
func (s *stream) send(ctx context.Context, l *link, call call, over <-chan struct{}) error {
	head := wire.Header{
		Op: call.op, Incarnation: l.client.cfg.Incarnation, Placement: s.place, Argument: call.argument,
		Step: call.step, Version: call.version, ShardEpoch: s.epoch, JobEpoch: s.job,
	}
	if l.client.cfg.WireDType == BFloat16 {
		head.DType = wire.BFloat16 // of a pull; float32 is what servers send without being asked
	}
	frames, size := 0, 0
	for _, f := range s.due {
		slot := &l.slots[f.slot]
		payload := slot.payload(call)
		if payload != nil {
			head.DType = slot.dtype
		}
		if head.Flags = f.place.flags(); f.place != inFrame {
			if !s.memory.ready() { // until the frames before it are answered
				if err := s.flush(ctx); err != nil {
					return err
				}
				frames, size = 0, 0
			}
			if err := s.memory.acquire(f.place, over); err != nil {
				return err
			}
			s.memory.put(f.place, payload, head.DType)
		}
		head.Block, head.Sequence, head.Length = slot.ID, f.sequence, uint32(len(payload))
		if call.op == wire.Push || call.op == wire.PushPull {
			head.Version = slot.at
		}
		raw := &s.headers[frames]
		head.Encode(raw)
		if len(payload) > 0 {
			wire.Begin(raw).Then(slot.sum, slot.size).Store(raw)
		} else {
			wire.Seal(raw, nil)
		}
		s.pieces = append(s.pieces, raw[:])
		if len(payload) > 0 && f.place == inFrame {
			s.pieces = append(s.pieces, payload)
		}
		frames, size = frames+1, size+len(payload)
		if frames == batchedFrames || size >= batchedBytes {
			if err := s.flush(ctx); err != nil {
				return err
			}
			frames, size = 0, 0
		}
	}
	return s.flush(ctx)
}

func (s *stream) flush(ctx context.Context) error {
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
