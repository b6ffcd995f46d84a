package metric

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// finite draws float64 values of all sizes: subnormal, small, large, and values that cancel each other.
func finite() *rapid.Generator[float64] {
	return rapid.OneOf(
		rapid.Custom(func(t *rapid.T) float64 {
			b := rapid.Uint64().Draw(t, "bits")
			if b>>52&0x7ff == 0x7ff {
				b ^= 1 << 60
			}
			return math.Float64frombits(b)
		}),
		rapid.Float64Range(-10, 10),
		rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 1, -1, 0x1p-1074, -0x1p-1074, 0x1p-1022, math.MaxFloat64, -math.MaxFloat64, 1e16, -1e16}),
	)
}

// exact returns Σ v x n as a fraction.
func exact(values []float64, times []int64) *big.Rat {
	sum := new(big.Rat)
	for i, v := range values {
		term := new(big.Rat).SetFloat64(v)
		sum.Add(sum, term.Mul(term, new(big.Rat).SetInt64(times[i])))
	}
	return sum
}

func TestSumIsTheNearestFloat64(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(finite(), 1, 60).Draw(t, "values")
		var a Accumulator
		times := make([]int64, len(values))
		for i, v := range values {
			times[i] = 1
			if rapid.Bool().Draw(t, "product") {
				times[i] = rapid.Int64Range(0, MaxCount).Draw(t, "times")
				if err := a.AddProduct(v, times[i]); err != nil {
					t.Fatal(err)
				}
			} else if err := a.Add(v); err != nil {
				t.Fatal(err)
			}
		}
		sum := exact(values, times)
		want, _ := sum.Float64()
		if found := a.Float64(); found != want {
			t.Fatalf("sum: expected %v, found %v", want, found)
		}
		n := rapid.Int64Range(1, MaxCount).Draw(t, "n")
		want, _ = sum.Quo(sum, new(big.Rat).SetInt64(n)).Float64()
		if found := a.Quotient(n); found != want {
			t.Fatalf("mean of %d: expected %v, found %v", n, want, found)
		}
	})
}

func TestSumOfChosenValues(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{math.Copysign(0, -1)}, 0},
		{[]float64{1e308, 1e308, -1e308, -1e308, 1}, 1},    // the sum of the first two exceeds float64
		{[]float64{1e16, 1, -1e16}, 1},                     // lost by rounding after each addition
		{[]float64{math.MaxFloat64, 0x1p970}, math.Inf(1)}, // half of the last bit: rounds up, beyond float64
		{[]float64{-math.MaxFloat64, -0x1p970}, math.Inf(-1)},
		{[]float64{math.MaxFloat64, 0x1p969}, math.MaxFloat64}, // less than half
		{[]float64{1, 0x1p-53}, 1},                             // tie: to even
		{[]float64{1, 0x1p-53, 0x1p-1074}, 1 + 0x1p-52},        // above the tie by the smallest float64
		{[]float64{0x1p-1074, 0x1p-1074}, 0x1p-1073},
		{[]float64{0x1p-1022, -0x1p-1074}, 0x1p-1022 - 0x1p-1074},
	} {
		var a Accumulator
		for _, v := range c.values {
			if err := a.Add(v); err != nil {
				t.Fatal(err)
			}
		}
		if found := a.Float64(); found != c.want || math.Signbit(found) != math.Signbit(c.want) {
			t.Errorf("sum of %v: expected %v, found %v", c.values, c.want, found)
		}
	}
}

// Carries are delayed: thousands of values of one size and sign must not overflow a limb.
func TestSumOfManyLargestValues(t *testing.T) {
	for _, v := range []float64{math.MaxFloat64, -math.MaxFloat64, math.Nextafter(2, 1), -0x1.fffffp-1060} {
		var a Accumulator
		const n = 10*maxPending + 7
		for range n {
			if err := a.Add(v); err != nil {
				t.Fatal(err)
			}
		}
		if found := a.Quotient(n); found != v {
			t.Errorf("mean of %d x %v: found %v", n, v, found)
		}
		for range n {
			if err := a.Add(-v); err != nil {
				t.Fatal(err)
			}
		}
		if a.carry(); a != (Accumulator{}) {
			t.Errorf("%v: expected the sum 0, found %v", v, a.Float64())
		}
	}
}

func TestNotFiniteValueIsRefused(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		var a Accumulator
		if err := a.Add(v); !errors.Is(err, ErrNotFinite) {
			t.Errorf("Add(%v): found %v", v, err)
		}
		if err := a.AddProduct(v, 3); !errors.Is(err, ErrNotFinite) {
			t.Errorf("AddProduct(%v): found %v", v, err)
		}
		if a != (Accumulator{}) {
			t.Errorf("%v changed the sum", v)
		}
	}
}

func BenchmarkAccumulator(b *testing.B) {
	for _, c := range []struct {
		name string
		draw func(*rand.Rand) float64
	}{
		{"losses", func(r *rand.Rand) float64 { return r.ExpFloat64() }},
		{"signs", func(r *rand.Rand) float64 { return r.NormFloat64() }},
		{"exponents", func(r *rand.Rand) float64 { return math.Ldexp(r.NormFloat64(), r.IntN(2000)-1000) }},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		values := make([]float64, 4096)
		for i := range values {
			values[i] = c.draw(r)
		}
		b.Run(c.name, func(b *testing.B) {
			var a Accumulator
			for b.Loop() {
				for _, v := range values {
					if err := a.Add(v); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(values)), "ns/value")
		})
	}
}

func ExampleAccumulator() {
	var a Accumulator
	for _, v := range []float64{1e16, 1, -1e16} {
		if err := a.Add(v); err != nil {
			fmt.Println(err)
		}
	}
	rounded := 1e16
	rounded += 1
	fmt.Println(a.Float64(), rounded-1e16)
	// Output: 1 0
}
