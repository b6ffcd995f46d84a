package params

import (
	"fmt"

	"trainmaster/pserver/wire"
)

// WireDType is the element type of gradients and parameters between a trainer and
// the servers. Trainers of one job may use different types.
type WireDType string

// The types. The servers keep parameters and optimizer state as float32 anyway.
const (
	Float32 WireDType = "float32"

	// BFloat16 is half the bytes, and eight bits of precision: gradients and the
	// parameters that the trainer gets are rounded to nearest, ties to even, by 2^-9
	// of their size at most. Gradients above 3.39e38 are refused as infinite.
	BFloat16 WireDType = "bfloat16"
)

var wireDTypes = map[WireDType]wire.DType{Float32: wire.Float32, BFloat16: wire.BFloat16}

// WireDTypes lists the types.
func WireDTypes() []string { return []string{string(Float32), string(BFloat16)} }

// prepare makes the payload of tensors and its sum, and reports
// whether it is finite. It reads the block from memory once.
func (s *slot) prepare(dtype wire.DType, tensors []Tensor) (isFinite bool) {
	if s.dtype != dtype {
		s.dtype, s.size = dtype, wire.DistanceOf(dtype.Size()*s.Len)
	}
	values := s.of(tensors)
	if dtype != wire.BFloat16 {
		s.sum, isFinite = wire.Checksum(0).AddFloats(values)
		return isFinite
	}
	if s.narrow == nil {
		s.narrow = make([]byte, 2*s.Len)
	}
	s.sum, isFinite = 0, true
	for lo := 0; lo < s.Len; lo += pieceBytes / 4 {
		hi := min(lo+pieceBytes/4, s.Len)
		isFinite = wire.Narrow(s.narrow[2*lo:], values[lo:hi]) && isFinite
		s.sum = s.sum.Add(s.narrow[2*lo : 2*hi])
	}
	return isFinite
}

// notFinite names the element that prepare has found.
func (s *slot) notFinite(what string, tensors []Tensor) error {
	values, name := s.of(tensors), tensors[s.tensor].Name
	at := wire.FirstNotFinite(values)
	if at >= 0 {
		return fmt.Errorf("%s %q: element %d is %v", what, name, s.Offset+at, values[at])
	}
	rounded := make([]float32, s.Len)
	wire.Widen(rounded, s.narrow)
	at = wire.FirstNotFinite(rounded)
	return fmt.Errorf("%s %q: element %d is %v, which is %v as %v", what, name, s.Offset+at, values[at], rounded[at], s.dtype)
}

// payload is what a call sends of the block, nil if nothing.
func (s *slot) payload(call call) []byte {
	switch {
	case call.src == nil:
		return nil
	case s.dtype == wire.BFloat16:
		return s.narrow
	}
	return wire.FloatBytes(s.of(call.src))
}

// receiveNarrow takes a payload of bfloat16.
func (s *stream) receiveNarrow(dst []float32) error {
	if s.scratch == nil {
		s.scratch = make([]byte, pieceBytes)
	}
	sum := wire.Begin(&s.raw)
	for len(dst) > 0 {
		n := min(len(dst), pieceBytes/2)
		piece := s.scratch[:2*n]
		if err := s.read(piece); err != nil {
			return err
		}
		sum = sum.Add(piece)
		wire.Widen(dst[:n], piece)
		dst = dst[n:]
	}
	return s.check(sum)
}
