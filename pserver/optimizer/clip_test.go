package optimizer

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestClipByNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{0, 1, 3, 4, 1001} {
		grad := normal(r, n)
		sum := 0.0
		for _, g := range grad {
			sum += float64(g) * float64(g)
		}
		if got := SquareSum(grad); math.Abs(got-sum) > 1e-12*(1+sum) {
			t.Errorf("%d elements: the squares' sum is %v, expected %v", n, got, sum)
		}
		if n < 3 {
			continue
		}
		Scale(grad, ClipFactor(math.Sqrt(sum), 0.5))
		norm := math.Sqrt(SquareSum(grad))
		if math.Abs(norm-0.5) > 1e-6 {
			t.Errorf("%d elements: clipped to %v, expected 0.5", n, norm)
		}
		if again := ClipFactor(norm, 0.5); again != 1 {
			t.Errorf("%d elements: clipped again, by %v", n, again)
		}
	}
	for _, norm := range []float64{0, 0.1, 2} {
		if got := ClipFactor(norm, 2); got != 1 {
			t.Errorf("a norm of %v is multiplied by %v to have 2 at most", norm, got)
		}
	}
	if got := ClipFactor(math.Sqrt(SquareSum([]float32{math.MaxFloat32, math.MaxFloat32})), 1); !(got > 0) {
		t.Errorf("a gradient as great as can be is multiplied by %v", got)
	}
}
