package floats

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// wideStep is how many bytes sumWide takes at a time.
const wideStep = 256

// constants move a CRC forward: 128 bits of it, over some bytes of message, are
// multiplied by powers of x modulo the polynomial (Gopal and others, "Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009).
type constants struct {
	by256, by64, by16 [2]uint64
	infinity          uint32 // the bits of the infinities, without sign: NaNs are above
}

var wideConstants = constants{by256: movedBy(256), by64: movedBy(64), by16: movedBy(16), infinity: 0xff << 24}

// wide reports whether the processor supports it.
var wide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42

// movedBy has the factors for both halves of 128 bits: the bits of a half are reflected, and so are the products.
func movedBy(bytes int) [2]uint64 { return [2]uint64{powerOfX(8*bytes + 32), powerOfX(8*bytes - 32)} }

// powerOfX is x^n modulo the polynomial, bits reflected, in 33 bits.
func powerOfX(n int) uint64 {
	p := uint32(1) << 31
	for range n {
		p = p>>1 ^ -(p&1)&crc32.Castagnoli
	}
	return uint64(p) << 1
}

// sumWide sums n bytes, a multiple of wideStep that is not 0. crc and sum are
// not inverted, as they are between calls of package crc32. As float32 the
// bytes are all finite if notFinite is 0.
//
//go:noescape
func sumWide(k *constants, crc uint32, p *byte, n int) (sum, notFinite uint32)

// sumMost adds the first n bytes of p to a CRC-32C, and reports whether they are finite as float32.
func sumMost(crc uint32, p []byte) (n int, sum uint32, isFinite bool) {
	n = len(p) &^ (wideStep - 1)
	if !wide || n == 0 {
		return 0, crc, true
	}
	folded, notFinite := sumWide(&wideConstants, ^crc, &p[0], n)
	return n, ^folded, notFinite == 0
}

// copyWide copies n bytes, a multiple of wideStep that is not 0, in one pass that reads each byte once. The copy is finite as
// float32 if notFinite is 0.
//
//go:noescape
func copyWide(dst, src *byte, n int, infinity uint32) (notFinite uint32)

// copyMost copies the first n bytes of src, and reports whether the copies are finite as float32.
func copyMost(dst, src []byte) (n int, isFinite bool) {
	n = len(src) &^ (wideStep - 1)
	if !wide || n == 0 {
		return 0, true
	}
	return n, copyWide(&dst[:n][0], &src[0], n, wideConstants.infinity) == 0
}
