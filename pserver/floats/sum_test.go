package floats

import (
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"testing"
)

// Sums of any length, in any pieces, equal the sums of the standard library.
func TestSumEqualsStandardLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		p := make([]byte, r.IntN(3000)+r.IntN(2)*(1<<20)/16)
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		from := r.IntN(len(p) + 1)
		middle := from + r.IntN(len(p)-from+1)
		start := r.Uint32()
		want := crc32.Update(start, castagnoli, p[from:])
		if got := Sum(Sum(start, p[from:middle]), p[middle:]); got != want {
			t.Fatalf("bytes %d to %d to %d: %08x, expected %08x", from, middle, len(p), got, want)
		}
		f := make([]float32, len(p)/4)
		copy(Bytes(f), p)
		want = crc32.Update(start, castagnoli, Bytes(f))
		if got, isFinite := SumFinite(start, f); got != want || isFinite != (FirstNotFinite(f) < 0) {
			t.Fatalf("%d elements: %08x, finite %v; expected %08x, first of the others is %d", len(f), got, isFinite, want, FirstNotFinite(f))
		}
	}
}

// One element that is not finite is found at every place, and the greatest that is finite passes.
func TestFiniteAtEveryPlace(t *testing.T) {
	signalling := math.Float32frombits(0x7f800001)
	for _, n := range []int{1, 63, 64, 65, 128, 333} {
		for _, fill := range []float32{0, -0.5, math.MaxFloat32, -math.MaxFloat32} {
			f := make([]float32, n)
			for i := range f {
				f[i] = fill
			}
			if !Finite(f) {
				t.Errorf("%d times %v is not finite", n, fill)
			}
			for i := range f {
				for _, v := range []float32{float32(math.NaN()), -float32(math.NaN()), signalling, float32(math.Inf(1)), float32(math.Inf(-1))} {
					f[i] = v
					if _, isFinite := SumFinite(0, f); isFinite || Finite(f) {
						t.Fatalf("%v at %d of %d is taken for finite", v, i, n)
					}
				}
				f[i] = fill
			}
		}
	}
}

func BenchmarkSum(b *testing.B) {
	for _, bytes := range []int{16 << 10, (1 << 20), 100 << 20} {
		f := make([]float32, bytes/4)
		for i := range f {
			f[i] = float32(i)
		}
		plain := func(f []float32) {
			crc32.Checksum(Bytes(f), castagnoli)
			finitePlain(f)
		}
		for name, sum := range map[string]func([]float32){"plain": plain, "here": func(f []float32) { SumFinite(0, f) }} {
			b.Run(fmt.Sprintf("%s/%dKiB", name, bytes>>10), func(b *testing.B) {
				b.SetBytes(int64(bytes))
				for b.Loop() {
					sum(f)
				}
			})
		}
	}
}
