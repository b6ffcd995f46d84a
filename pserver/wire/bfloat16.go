package wire

import (
	"encoding/binary"
	"math"
)

// Narrow writes src as bfloat16, the upper half of a float32: dst has two bytes for
// each element. It rounds to nearest, ties to even; a NaN stays a quiet NaN.
// isFinite reports that dst has no NaN and no infinity: numbers beyond the
// greatest bfloat16, 3.39e38, round to infinity.
func Narrow(dst []byte, src []float32) (isFinite bool) {
	n, isFinite := narrowMost(dst[:2*len(src)], src)
	return narrowPlain(dst[2*n:], src[n:]) && isFinite
}

// Widen reads bfloat16 from src, two bytes for each element of dst, and reports
// whether all are finite. It goes forward: src may be the last half of dst's memory.
func Widen(dst []float32, src []byte) (isFinite bool) {
	n, isFinite := widenMost(dst, src[:2*len(dst)])
	return widenPlain(dst[n:], src[2*n:]) && isFinite
}

const infinityBF16 = 0x7f80

func narrowPlain(dst []byte, src []float32) (isFinite bool) {
	isFinite = true
	for i, v := range src {
		b := math.Float32bits(v)
		h := uint16((b + 0x7fff + b>>16&1) >> 16)
		if v != v {
			h = uint16(b>>16) | 0x40
		}
		binary.LittleEndian.PutUint16(dst[2*i:], h)
		isFinite = isFinite && h&0x7fff < infinityBF16
	}
	return isFinite
}

func widenPlain(dst []float32, src []byte) (isFinite bool) {
	isFinite = true
	for i := range dst {
		h := binary.LittleEndian.Uint16(src[2*i:])
		dst[i] = math.Float32frombits(uint32(h) << 16)
		isFinite = isFinite && h&0x7fff < infinityBF16
	}
	return isFinite
}
