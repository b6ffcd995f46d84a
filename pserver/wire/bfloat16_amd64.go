package wire

import "golang.org/x/sys/cpu"

// halves is how many elements narrowAVX2 and widenAVX2 take at a time.
const halves = 16

// narrowAVX2 and widenAVX2 do n elements, a multiple of halves that is not 0. All
// are finite if notFinite is 0.
//
//go:noescape
func narrowAVX2(dst *byte, src *float32, n int) (notFinite uint32)

//go:noescape
func widenAVX2(dst *float32, src *byte, n int) (notFinite uint32)

func narrowMost(dst []byte, src []float32) (n int, isFinite bool) {
	if n = len(src) &^ (halves - 1); n == 0 || !cpu.X86.HasAVX2 {
		return 0, true
	}
	return n, narrowAVX2(&dst[0], &src[0], n) == 0
}

func widenMost(dst []float32, src []byte) (n int, isFinite bool) {
	if n = len(dst) &^ (halves - 1); n == 0 || !cpu.X86.HasAVX2 {
		return 0, true
	}
	return n, widenAVX2(&dst[0], &src[0], n) == 0
}
