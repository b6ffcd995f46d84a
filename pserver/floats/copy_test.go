package floats

import (
	"math"
	"slices"
	"testing"
)

// Of any length, and wherever the element that is not finite lies.
func TestCopyFiniteCopiesAndChecks(t *testing.T) {
	for _, n := range []int{0, 1, 15, 63, 64, 65, 127, 128, 200, 4096} {
		src := make([]float32, n)
		for i := range src {
			src[i] = float32(i+1) * (-math.MaxFloat32 / 4097)
		}
		check := func(want bool) {
			t.Helper()
			room := make([]float32, n+1)
			if got := CopyFinite(room[:n], src); got != want {
				t.Errorf("%d elements: finite %t, expected %t", n, got, want)
			}
			if !slices.EqualFunc(room[:n], src, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) || room[n] != 0 {
				t.Errorf("%d elements: the copy differs", n)
			}
		}
		check(true)
		for i := range src {
			kept := src[i]
			for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				if n > 200 && i%37 > 0 {
					break
				}
				src[i] = float32(v)
				check(false)
			}
			src[i] = kept
		}
	}
}
