package wire

import (
	"encoding/binary"
	"hash/crc32"

	"trainmaster/pserver/floats"
)

// Checksum is a CRC-32C that grows piece by piece: a caller that processes a payload in pieces sums each piece while it is in the
// cache.
type Checksum uint32

// Begin sums the header's own bytes.
func Begin(raw *[HeaderSize]byte) Checksum {
	return Checksum(floats.Sum(0, raw[:crcOffset]))
}

// Add sums the next bytes of the payload.
func (c Checksum) Add(payload []byte) Checksum { return Checksum(floats.Sum(uint32(c), payload)) }

// AddFloats sums the next elements of the payload, and reports in the same pass
// whether all are finite.
func (c Checksum) AddFloats(f []float32) (sum Checksum, isFinite bool) {
	crc, isFinite := floats.SumFinite(uint32(c), f)
	return Checksum(crc), isFinite
}

// Store writes the finished sum into the header.
func (c Checksum) Store(raw *[HeaderSize]byte) {
	binary.LittleEndian.PutUint32(raw[crcOffset:], uint32(c))
}

// Check compares the finished sum with the sum in the header.
func (c Checksum) Check(raw *[HeaderSize]byte) error {
	if want := binary.LittleEndian.Uint32(raw[crcOffset:]); uint32(c) != want {
		return Faultf(BadChecksum, "frame sums to %08x, its header says %08x", uint32(c), want)
	}
	return nil
}

// Seal puts the checksum of an encoded header and its payload into place.
func Seal(raw *[HeaderSize]byte, payload []byte) {
	Begin(raw).Add(payload).Store(raw)
}

// Verify checks a received header and payload against their checksum.
func Verify(raw *[HeaderSize]byte, payload []byte) error {
	return Begin(raw).Add(payload).Check(raw)
}

// Then returns the sum of the bytes in c followed by the bytes in rest, whose sum started from 0; d is the number of bytes in rest.
// A payload can thus be summed before its header is known.
func (c Checksum) Then(rest Checksum, d Distance) Checksum {
	return Checksum(multiply(uint32(c), uint32(d))) ^ rest
}

// Distance is a number of bytes, as the power of x by which they move a sum.
type Distance uint32

// DistanceOf is the distance over some bytes.
func DistanceOf(bytes int) Distance {
	d, square := uint32(1)<<31, uint32(1)<<23 // x^0 and x^8, bits reflected
	for ; bytes > 0; bytes >>= 1 {
		if bytes&1 != 0 {
			d = multiply(d, square)
		}
		square = multiply(square, square)
	}
	return Distance(d)
}

// multiply is a*b modulo the polynomial, bits reflected.
func multiply(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		p ^= -(a >> 31) & b
		b = timesX(b)
	}
	return p
}

// timesX is b*x modulo the polynomial, bits reflected.
func timesX(b uint32) uint32 { return b>>1 ^ -(b&1)&crc32.Castagnoli }
