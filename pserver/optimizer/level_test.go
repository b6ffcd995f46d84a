package optimizer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// wild fills values with special numbers among numbers of every magnitude.
func wild(r *rand.Rand, values []float32) {
	special := []float32{0, float32(math.Copysign(0, -1)), math.SmallestNonzeroFloat32, -1e-39, 1e-20, math.MaxFloat32, -math.MaxFloat32, 1, -1, 0.01, -0.01}
	for i := range values {
		switch r.IntN(4) {
		case 0:
			values[i] = special[r.IntN(len(special))]
		case 1:
			values[i] = math.Float32frombits(r.Uint32()&^(0xff<<23) | r.Uint32N(0xff)<<23) // any that is finite
		default:
			values[i] = float32(r.NormFloat64())
		}
	}
}

// offset returns n values of a separate array at the given number of elements after a 64-byte
// boundary, with a guard after them.
func offset(n, elements int) []float32 {
	const guard = 16
	all := make([]float32, n+elements+2*guard)
	for uintptr(unsafe.Pointer(&all[0]))%64 != 0 {
		all = all[1:]
	}
	for i := range all {
		all[i] = 12345
	}
	return all[elements : elements+n : elements+n+guard]
}

// same compares bits; one NaN is as good as another one.
func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// Every level has the bits of the plain loops, whatever the values, the length and
// the alignment, and touches nothing behind the end.
func TestLevelsBitByBit(t *testing.T) {
	configs := everyKind(t)
	for _, kind := range Kinds() {
		configs = append(configs, validated(t, Config{Kind: kind, LearningRate: 0.1}))
	}
	for _, level := range levels[:len(levels)-1] {
		for _, c := range configs {
			t.Run(level.name+"/"+c.String(), func(t *testing.T) {
				r := rand.New(rand.NewPCG(5, 6))
				for n := range 70 {
					compareLevels(t, r, c, level, n)
				}
				for _, n := range []int{999, 4095, 4096, 4097} {
					compareLevels(t, r, c, level, n)
				}
			})
		}
	}
}

func compareLevels(t *testing.T, r *rand.Rand, c Config, other *level, n int) {
	t.Helper()
	type arrays struct {
		rule         Rule
		params, grad []float32
		state        State
	}
	var both [2]arrays
	for i, l := range []*level{plainLevel, other} {
		a := &both[i]
		a.rule = c.rule(l)
		a.params, a.grad = offset(n, r.IntN(16)), offset(n, r.IntN(16))
		for j := range a.rule.Slots() {
			a.state[j] = offset(n, r.IntN(16))
		}
	}
	plain, wide := &both[0], &both[1]
	wild(r, plain.params)
	for j := range plain.rule.Slots() {
		wild(r, plain.state[j])
		for i, v := range plain.state[j] {
			if j == len(plain.rule.Slots())-1 && c.Kind != Momentum && c.Kind != Nesterov {
				plain.state[j][i] = float32(math.Abs(float64(v))) // of a root
			}
		}
		copy(wide.state[j], plain.state[j])
	}
	copy(wide.params, plain.params)
	for step := uint64(1); step <= 3; step++ {
		wild(r, plain.grad)
		copy(wide.grad, plain.grad)
		for i := range both {
			both[i].rule.Apply(both[i].params, both[i].grad, both[i].state, Step{step, float32(c.Schedule.At(step))})
		}
		compareBits(t, fmt.Sprintf("%d elements, step %d: parameter", n, step), plain.params, wide.params)
		for j := range plain.rule.Slots() {
			compareBits(t, fmt.Sprintf("%d elements, step %d: %s", n, step, plain.rule.Slots()[j]), plain.state[j], wide.state[j])
		}
	}
}

func compareBits(t *testing.T, what string, want, got []float32) {
	t.Helper()
	for i := range want {
		if !same(want[i], got[i]) {
			t.Fatalf("%s %d is %x, expected %x", what, i, got[i], want[i])
		}
	}
	for i, v := range got[len(got):cap(got)] {
		if v != 12345 {
			t.Fatalf("%s: %d behind the end was changed to %v", what, i, v)
		}
	}
}
