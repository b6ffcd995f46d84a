package stream

import (
	"bufio"
	"fmt"
	"io"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/wire"
)

// Reply is the reply that is being read.
type Reply struct {
	Head wire.Header

	r       *bufio.Reader
	raw     [wire.HeaderSize]byte
	rest    []byte // of the payload, if it is in the shared memory
	scratch []byte // a piece of bfloat16
}

// Floats reads the payload, elements of dtype, into dst.
func (r *Reply) Floats(dst []float32, dtype wire.DType) error {
	narrow := dtype == wire.BFloat16
	expected := dtype.Size() * len(dst)
	if int(r.Head.Length) != expected || expected > 0 && narrow != (r.Head.DType == wire.BFloat16) {
		return fmt.Errorf("%v reply has %d bytes of %v, expected %d of %v", r.Head.Op, r.Head.Length, r.Head.DType, expected, dtype)
	}
	if !narrow {
		return r.Bytes(floats.Bytes(dst))
	}
	if r.scratch == nil {
		r.scratch = make([]byte, pieceBytes)
	}
	sum := wire.Begin(&r.raw)
	for len(dst) > 0 {
		n := min(len(dst), pieceBytes/2)
		piece := r.scratch[:2*n]
		if err := r.read(piece); err != nil {
			return err
		}
		sum = sum.Add(piece)
		wire.Widen(dst[:n], piece)
		dst = dst[n:]
	}
	return r.check(sum)
}

// Bytes reads and sums the payload piece by piece, while it is in the cache.
func (r *Reply) Bytes(payload []byte) error {
	sum := wire.Begin(&r.raw)
	for len(payload) > 0 {
		n := min(len(payload), pieceBytes)
		if err := r.read(payload[:n]); err != nil {
			return err
		}
		sum = sum.Add(payload[:n])
		payload = payload[n:]
	}
	return r.check(sum)
}

// read takes the next bytes of a payload.
func (r *Reply) read(p []byte) error {
	if r.rest != nil {
		r.rest = r.rest[copy(p, r.rest):]
		return nil
	}
	if _, err := io.ReadFull(r.r, p); err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	return nil
}

// check compares the sum of a payload with the sum in its header.
func (r *Reply) check(sum wire.Checksum) error {
	if err := sum.Check(&r.raw); err != nil {
		return fmt.Errorf("reply: %v", err) //nolint:errorlint // our finding, not the server's refusal
	}
	return nil
}

// text reads a payload of at most limit bytes.
func (r *Reply) text(limit int) ([]byte, error) {
	if r.Head.Length > uint32(limit) {
		return nil, fmt.Errorf("%v reply has %d bytes, the limit is %d", r.Head.Op, r.Head.Length, limit)
	}
	text := make([]byte, r.Head.Length)
	return text, r.Bytes(text)
}
