package optimizer

import "gonum.org/v1/gonum/blas/blas32"

// SquareSum is the sum of the squares of values, in float64. It depends on the
// order of the values and on nothing else.
func SquareSum(values []float32) float64 {
	var sums [4]float64 // independent, so that one addition need not wait for the other
	for len(values) >= 4 {
		four := (*[4]float32)(values)
		for i, v := range four {
			sums[i] += float64(float64(v) * float64(v))
		}
		values = values[4:]
	}
	for _, v := range values {
		sums[0] += float64(float64(v) * float64(v))
	}
	return (sums[0] + sums[1]) + (sums[2] + sums[3])
}

// clipSlack is the relative tolerance of the limit: a clipped gradient is not clipped again because of rounding.
const clipSlack = 1e-6

// ClipFactor returns the factor that reduces a norm to at most limit, 1 if the norm is within the limit.
func ClipFactor(norm, limit float64) float32 {
	if norm <= limit*(1+clipSlack) {
		return 1
	}
	return float32(limit / norm)
}

// Scale multiplies values by factor.
func Scale(values []float32, factor float32) {
	blas32.Scal(factor, blas32.Vector{N: len(values), Data: values, Inc: 1})
}

// Add adds values to sum, one rounding for each element.
func Add(sum, values []float32) {
	blas32.Axpy(1, blas32.Vector{N: len(values), Data: values, Inc: 1}, blas32.Vector{N: len(sum), Data: sum, Inc: 1})
}
