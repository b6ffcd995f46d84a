package wire

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"trainmaster/pserver/floats"
)

// nearest is v as bfloat16 by its definition: eight bits of precision, ties to even.
func nearest(v float32) uint16 {
	bits := math.Float32bits(v)
	switch {
	case v != v:
		return uint16(bits>>16) | 0x40
	case v == 0 || v-v != 0:
		return uint16(bits >> 16)
	}
	precision := 8
	if exponent := int(bits >> 23 & 0xff); exponent == 0 { // denormal: 2^-133 is the least step
		precision = big.NewFloat(float64(v)).MantExp(nil) + 133
	}
	if precision <= 0 { // below half of the least step, or just at it
		if half := math.Ldexp(1, -134); math.Abs(float64(v)) > half {
			return uint16(bits>>31)<<15 | 1
		}
		return uint16(bits>>31) << 15
	}
	rounded, _ := new(big.Float).SetPrec(uint(precision)).SetMode(big.ToNearestEven).SetFloat64(float64(v)).Float64()
	if math.Abs(rounded) > math.MaxFloat32 {
		return uint16(bits>>31)<<15 | infinityBF16
	}
	return uint16(math.Float32bits(float32(rounded)) >> 16)
}

func TestNarrowIsTheNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var src []float32
	for range 50_000 {
		src = append(src, math.Float32frombits(r.Uint32()))
	}
	for high := range uint32(1 << 16) { // all of bfloat16, the midpoint to the next, and around both
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			src = append(src, math.Float32frombits(high<<16|low))
		}
	}
	dst, plain := make([]byte, 2*len(src)), make([]byte, 2*len(src))
	Narrow(dst, src)
	narrowPlain(plain, src)
	for i, v := range src {
		want := nearest(v)
		if got := binary.LittleEndian.Uint16(dst[2*i:]); got != want {
			t.Fatalf("%v (%08x) is %04x, expected %04x", v, math.Float32bits(v), got, want)
		}
		if got := binary.LittleEndian.Uint16(plain[2*i:]); got != want {
			t.Fatalf("%v (%08x) is %04x by the plain loop, expected %04x", v, math.Float32bits(v), got, want)
		}
	}
}

// Each bfloat16 survives widening and narrowing, at any length and alignment. Memory after the end is untouched.
func TestThereAndBack(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 100 {
		src := make([]float32, n+n%7)[n%7:]
		for i := range src {
			src[i] = math.Float32frombits(r.Uint32() &^ 0xffff)
			if src[i] != src[i] {
				src[i] = 1
			}
		}
		narrow := make([]byte, 2*n+40)[n%5:]
		narrow[2*n] = 77
		isFinite := Narrow(narrow, src)
		back := make([]float32, n+1)
		back[n] = 55
		if widened := Widen(back[:n], narrow); isFinite != widened || isFinite != (floats.FirstNotFinite(src) < 0) {
			t.Fatalf("%d elements: finite %v and %v, first of the others is %d", n, isFinite, widened, floats.FirstNotFinite(src))
		}
		for i, v := range src {
			if math.Float32bits(back[i]) != math.Float32bits(v) {
				t.Fatalf("%d elements: %d is %v, expected %v", n, i, back[i], v)
			}
		}
		if narrow[2*n] != 77 || back[n] != 55 {
			t.Fatalf("%d elements: what lies behind them was changed", n)
		}
	}
}

// A payload at the end of a buffer is widened into the whole of it.
func TestWidenInPlace(t *testing.T) {
	for n := range 200 {
		whole := make([]float32, n)
		for i := range whole {
			whole[i] = float32(i)
		}
		payload := floats.Bytes(whole)[2*n:]
		narrow := make([]byte, 2*n)
		Narrow(narrow, whole)
		copy(payload, narrow)
		Widen(whole, payload)
		for i, v := range whole {
			if v != float32(i) {
				t.Fatalf("%d elements: %d became %v", n, i, v)
			}
		}
	}
}

// One element that is not finite is found at every position, also if only its rounded value is infinite.
func TestBFloat16IsFiniteAtEveryPlace(t *testing.T) {
	for _, n := range []int{1, 15, 16, 17, 53} {
		src, narrow := make([]float32, n), make([]byte, 2*n)
		for i := range src {
			src[i] = -3.38e38
		}
		if !Narrow(narrow, src) || !Widen(make([]float32, n), narrow) {
			t.Errorf("%d times %v is not finite", n, src[0])
		}
		for i := range src {
			for _, v := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, -math.MaxFloat32, math.Float32frombits(0x7f800001)} {
				src[i] = v
				if Narrow(narrow, src) || Widen(make([]float32, n), narrow) {
					t.Fatalf("%v at %d of %d is taken for finite", v, i, n)
				}
			}
			src[i] = -3.38e38
		}
	}
}

func BenchmarkBFloat16(b *testing.B) {
	wide, narrow := make([]float32, 1<<14), make([]byte, 2<<14)
	for name, convert := range map[string]func(){
		"narrow": func() { Narrow(narrow, wide) }, "widen": func() { Widen(wide, narrow) },
		"narrow plain": func() { narrowPlain(narrow, wide) }, "widen plain": func() { widenPlain(wide, narrow) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(narrow) + 4*len(wide)))
			for b.Loop() {
				convert()
			}
		})
	}
}
