package stream

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/sharedmem"
	"trainmaster/pserver/wire"
)

// pull returns a frame whose reply fills dst.
func pull(dst []float32, dtype wire.DType) Frame {
	return Frame{
		Progress: new(Progress),
		Head:     wire.Header{Op: wire.Pull},
		Size:     dtype.Size() * len(dst),
		Take:     func(_ *Frame, r *Reply) error { return r.Floats(dst, dtype) },
	}
}

// A reply that is not the reply to the frame is an error, and not a refusal by the server. The connection is closed, since the next
// bytes can be anything.
func TestInvalidReplyClosesConnection(t *testing.T) {
	const elements = 40_000 // more than a piece
	payload := floats.Bytes(make([]float32, elements))
	flip := func(b []byte) []byte {
		b[len(b)-1] ^= 1
		return b
	}
	for name, try := range map[string]struct {
		dtype wire.DType
		bytes func(wire.Header) []byte
		says  string
	}{
		"header cut off":  {wire.Float32, func(h wire.Header) []byte { return reply(h, nil, nil)[:20] }, "unexpected EOF"},
		"payload cut off": {wire.Float32, func(h wire.Header) []byte { return reply(h, payload, nil)[:100_000] }, "unexpected EOF"},
		"bfloat16 cut off": {wire.BFloat16, func(h wire.Header) []byte {
			return reply(h, payload[:2*elements], func(h *wire.Header) { h.DType = wire.BFloat16 })[:70_000]
		}, "unexpected EOF"},
		"checksum": {wire.Float32, func(h wire.Header) []byte { return flip(reply(h, payload, nil)) }, "checksum"},
		"checksum of bfloat16": {wire.BFloat16, func(h wire.Header) []byte {
			return flip(reply(h, payload[:2*elements], func(h *wire.Header) { h.DType = wire.BFloat16 }))
		}, "checksum"},
		"checksum of a refusal": {wire.Float32, func(h wire.Header) []byte {
			return flip(reply(h, []byte("reason"), refusal(wire.Fenced)))
		}, "checksum"},
		"4 bytes fewer": {wire.Float32, func(h wire.Header) []byte { return reply(h, payload[4:], nil) }, "159996 bytes"},
		"1 byte more":   {wire.Float32, func(h wire.Header) []byte { return reply(h, append(slices.Clone(payload), 0), nil) }, "160001 bytes"},
		"float32 for bfloat16": {wire.BFloat16, func(h wire.Header) []byte {
			return reply(h, payload[:2*elements], func(h *wire.Header) { h.DType = wire.Float32 })
		}, "of float32, expected 80000 of bfloat16"},
		"bfloat16 for float32": {wire.Float32, func(h wire.Header) []byte {
			return reply(h, payload, func(h *wire.Header) { h.DType = wire.BFloat16 })
		}, "of bfloat16, expected 160000 of float32"},
		"text of a refusal above the limit": {wire.Float32, func(h wire.Header) []byte {
			return reply(h, make([]byte, wire.MaxMessage+1), refusal(wire.Fenced))
		}, "the limit is"},
		"other sequence": {wire.Float32, func(h wire.Header) []byte {
			return reply(h, payload, func(h *wire.Header) { h.Sequence++ })
		}, "expected one to"},
		"no reply": {wire.Float32, func(h wire.Header) []byte {
			return reply(h, payload, func(h *wire.Header) { h.Flags = 0 })
		}, "expected one to"},
		"shared memory": {wire.Float32, func(h wire.Header) []byte {
			return reply(h, payload, func(h *wire.Header) { h.Flags |= wire.Shared })
		}, "is in shared memory, the frame was not"},
	} {
		t.Run(name, func(t *testing.T) {
			s := dialed(t, config(), func(nc net.Conn, head wire.Header, _ []byte) error {
				if _, err := nc.Write(try.bytes(head)); err != nil {
					return err
				}
				if try.says == "unexpected EOF" {
					return errors.New("cut off")
				}
				return nil
			})
			err := s.Exchange(t.Context(), []Frame{pull(make([]float32, elements), try.dtype)})
			if err == nil || !strings.Contains(err.Error(), try.says) {
				t.Errorf("error %v, expected %q in it", err, try.says)
			}
			if fault, refused := errors.AsType[*wire.Fault](err); refused {
				t.Errorf("found the refusal %v, expected an error of the connection", fault)
			}
			if err := s.nc.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("connection after the error: %v, expected it to be closed", err)
			}
		})
	}
}

// A reply of bfloat16 is widened exactly, in pieces.
func TestBFloat16ReplyIsWidened(t *testing.T) {
	sent := make([]float32, pieceBytes+33) // three pieces
	r := rand.New(rand.NewPCG(1, 2))
	for i := range sent {
		sent[i] = float32(r.NormFloat64())
	}
	narrow := make([]byte, 2*len(sent))
	wire.Narrow(narrow, sent)
	s := dialed(t, config(), func(nc net.Conn, head wire.Header, _ []byte) error {
		_, err := nc.Write(reply(head, narrow, func(h *wire.Header) { h.DType = wire.BFloat16 }))
		return err
	})
	got := make([]float32, len(sent))
	if err := s.Exchange(t.Context(), []Frame{pull(got, wire.BFloat16)}); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		rounded := math.Float32bits(v)
		if rounded&0xffff != 0 || math.Abs(float64(v-sent[i])) > math.Abs(float64(sent[i]))/256 {
			t.Fatalf("element %d of %v became %v (%#x), expected it rounded to bfloat16", i, sent[i], v, rounded)
		}
	}
}

// Many frames of all sizes arrive whole and in order, whether their sum is given or computed.
func TestFramesArriveInOrder(t *testing.T) {
	s := dialed(t, config(), echo)
	var frames []Frame
	body := make([]byte, 300_000)
	for i := range body {
		body[i] = byte(i * 7)
	}
	scratch := make([]byte, len(body)) // one for all frames: valid until the next Fill
	taken := 0
	for i := range 3*batchedFrames + 5 {
		size := []int{0, 4, 4096, len(body)}[i%4]
		if i > batchedFrames {
			size = min(size, 4096)
		}
		payload := body[i%100:][:max(0, size-i%100)]
		f := Frame{
			Progress: new(Progress), Head: wire.Header{Op: wire.Push}, Index: i, Size: size,
			Payload: payload, Sum: wire.Checksum(0).Add(payload), Distance: wire.DistanceOf(len(payload)),
			Take: func(f *Frame, r *Reply) error {
				if f.Index != taken {
					t.Errorf("reply to frame %d, expected frame %d", f.Index, taken)
				}
				taken++
				got := make([]byte, r.Head.Length)
				if err := r.Bytes(got); err != nil {
					return err
				}
				if !slices.Equal(got, payload) {
					t.Errorf("frame %d of %d bytes came back with %d other bytes", f.Index, len(payload), len(got))
				}
				return nil
			},
		}
		if i%3 == 0 {
			f.Payload, f.Fill = nil, func(*Frame, []byte) []byte { return scratch[:copy(scratch, payload)] }
		}
		frames = append(frames, f)
	}
	little := slices.Repeat([]Frame{pull(nil, wire.Float32)}, 2*batchedFrames+1)
	for range 2 { // the memory of the first exchange is used again
		if err := s.Exchange(t.Context(), little); err != nil {
			t.Fatal(err)
		}
		taken = 0
		if err := s.Exchange(t.Context(), frames); err != nil || taken != len(frames) {
			t.Fatalf("%d of %d replies, %v", taken, len(frames), err)
		}
	}
}

// The first refusal is returned after all replies, so that the connection can be used again. Another refusal replaces a wait.
func TestExchangeReturnsRefusalAfterAllReplies(t *testing.T) {
	codes := []wire.Code{wire.Wait, wire.Stale, 0, wire.Moved}
	n := 0
	s := dialed(t, config(), func(nc net.Conn, head wire.Header, _ []byte) error {
		code := codes[n%len(codes)]
		n++
		change := unchanged
		if code != 0 {
			change = refusal(code)
		}
		_, err := nc.Write(reply(head, nil, change))
		return err
	})
	for range 2 {
		taken := 0
		f := pull(nil, wire.Float32)
		f.Take = func(*Frame, *Reply) error { taken++; return nil }
		err := s.Exchange(t.Context(), slices.Repeat([]Frame{f}, len(codes)))
		if fault, refused := errors.AsType[*wire.Fault](err); !refused || fault.Code != wire.Stale || taken != 1 {
			t.Errorf("%d replies taken, error %v: expected 1 and the refusal %v", taken, err, wire.Stale)
		}
	}
}

func TestFatalRefusalClosesConnection(t *testing.T) {
	s := dialed(t, config(), func(nc net.Conn, head wire.Header, _ []byte) error {
		_, err := nc.Write(reply(head, []byte("a newer one exists"), refusal(wire.Fenced)))
		return err
	})
	err := s.Exchange(t.Context(), slices.Repeat([]Frame{pull(nil, wire.Float32)}, 2))
	if fault, refused := errors.AsType[*wire.Fault](err); !refused || fault.Code != wire.Fenced || fault.Message != "a newer one exists" {
		t.Errorf("error %v, expected the refusal %v", err, wire.Fenced)
	}
	if err := s.nc.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("connection after the refusal: %v, expected it to be closed", err)
	}
}

// A server that does not reply is left when the context ends, and after the timeout.
func TestSilentServerEndsExchange(t *testing.T) {
	asked := make(chan struct{}, 2)
	silent := func(net.Conn, wire.Header, []byte) error { asked <- struct{}{}; return nil }
	s := dialed(t, config(), silent)
	s.timeout = 30 * time.Second
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	began := time.Now()
	if err := s.Exchange(ctx, []Frame{pull(nil, wire.Float32)}); err == nil || time.Since(began) >= s.timeout {
		t.Errorf("the context ended: the exchange returned %v after %v, expected an error before the timeout", err, time.Since(began))
	}
	s = dialed(t, config(), silent)
	s.timeout = time.Millisecond
	if err := s.Exchange(t.Context(), []Frame{pull(nil, wire.Float32)}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the timeout: %v, expected %v", err, os.ErrDeadlineExceeded)
	}
}

// shortDir is a directory for a socket; the path of the test's own directory can exceed the limit.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func shared(t *testing.T) (*sharedmem.Memory, *os.File) {
	t.Helper()
	memory, file, err := sharedmem.Create(2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { memory.Close(); file.Close() })
	return memory, file
}

// Large payloads are in the slots of the shared memory, in both directions. A slot is used again after its reply was taken.
func TestLargePayloadsUseSharedMemory(t *testing.T) {
	memory, file := shared(t)
	addr := withSocket(t, memory, func(nc net.Conn, head wire.Header, offer []byte) error {
		if head.Flags&wire.Shared == 0 {
			t.Error("the hello does not ask for shared memory")
		}
		whole := reply(head, offer, func(h *wire.Header) { h.Flags, h.Argument = wire.Reply|wire.Shared, uint32(memory.Slots()) })
		return sharedmem.Send(sharedmem.Through(nc), whole, file)
	})
	s := connect(t, addr, config())
	if s.memory == nil {
		t.Fatal("the stream has no shared memory")
	}
	var frames []Frame
	got := make([][]float32, 9)
	for i := range got {
		sent := make([]float32, []int{leastShared / 4, leastShared/4 - 1, 50_000}[i/3])
		for k := range sent {
			sent[k] = float32(i*len(sent) + k)
		}
		got[i] = make([]float32, len(sent))
		payload := floats.Bytes(sent)
		frames = append(frames, Frame{
			Progress: new(Progress), Head: wire.Header{Op: wire.PushPull}, Index: i, Size: 4 * len(sent),
			Payload: payload, Sum: wire.Checksum(0).Add(payload), Distance: wire.DistanceOf(len(payload)),
			Take: func(_ *Frame, r *Reply) error {
				defer func() {
					if !slices.Equal(got[i], sent) {
						t.Errorf("frame %d came back changed", i)
					}
				}()
				return r.Floats(got[i], wire.Float32)
			},
		})
	}
	if err := s.Exchange(t.Context(), frames); err != nil {
		t.Fatal(err)
	}
	inMemory := 0
	for _, f := range frames {
		if f.Head.Flags&wire.Shared != 0 { // the server reads the payloads of such frames in the memory
			inMemory++
		}
	}
	if inMemory != 6 {
		t.Errorf("%d payloads in shared memory, expected the 6 of at least %d bytes", inMemory, leastShared)
	}
}

// If the socket or its memory is not as offered, the stream uses TCP. If the server has no memory left, payloads go through the socket.
func TestRefusedSharedMemoryLeavesTCP(t *testing.T) {
	for name, try := range map[string]struct {
		hello   func(nc net.Conn, head wire.Header, offer []byte, file *os.File) error
		network string
	}{
		"memory without the flag": {func(nc net.Conn, head wire.Header, offer []byte, file *os.File) error {
			return sharedmem.Send(sharedmem.Through(nc), reply(head, offer, func(h *wire.Header) { h.Argument = 2 }), file)
		}, "tcp"},
		"memory of another size": {func(nc net.Conn, head wire.Header, offer []byte, file *os.File) error {
			return sharedmem.Send(sharedmem.Through(nc), reply(head, offer, func(h *wire.Header) { h.Flags, h.Argument = wire.Reply|wire.Shared, 3 }), file)
		}, "tcp"},
		"another server": {func(nc net.Conn, head wire.Header, offer []byte, _ *os.File) error {
			offer[0]++
			_, err := nc.Write(reply(head, offer, nil))
			return err
		}, "tcp"},
		"refusal": {func(nc net.Conn, head wire.Header, _ []byte, _ *os.File) error {
			_, err := nc.Write(reply(head, nil, refusal(wire.WrongShard)))
			return err
		}, "tcp"},
		"end": {func(net.Conn, wire.Header, []byte, *os.File) error { return errors.New("end") }, "tcp"},
		"no memory left": {func(nc net.Conn, head wire.Header, offer []byte, _ *os.File) error {
			_, err := nc.Write(reply(head, offer, nil))
			return err
		}, "unix"},
	} {
		t.Run(name, func(t *testing.T) {
			memory, file := shared(t)
			s := connect(t, withSocket(t, memory, func(nc net.Conn, head wire.Header, offer []byte) error {
				return try.hello(nc, head, offer, file)
			}), config())
			if got := s.nc.RemoteAddr().Network(); got != try.network || s.memory != nil {
				t.Errorf("the stream uses %s, shared memory %t: expected %s without shared memory", got, s.memory != nil, try.network)
			}
			sent := make([]float32, leastShared)
			f := pull(make([]float32, len(sent)), wire.Float32)
			f.Head.Op, f.Fill = wire.PushPull, func(*Frame, []byte) []byte { return floats.Bytes(sent) }
			if err := s.Exchange(t.Context(), []Frame{f}); err != nil {
				t.Error(err)
			}
		})
	}
}
