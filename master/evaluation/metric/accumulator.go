package metric

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
)

// MaxCount is the largest number of values or records in a metric: a float64 represents each number up to it exactly.
const MaxCount = 1 << 53

const (
	limbBits = 32
	// limbs holds MaxCount values of the largest float64 with a sign: 2098 + 53 + 1 bits, and one limb for carries.
	limbs = 68
	// lowest is the exponent of the lowest bit, 2^-1074: the smallest subnormal float64.
	lowest = -1074
	// maxPending is the number of additions between two carries. An addition adds less than 2^52 + 2^32 to a limb, and a limb has 63 bits.
	maxPending = 1 << 10
)

// ErrNotFinite is returned for NaN and for infinite values.
var ErrNotFinite = errors.New("not a finite number")

// Accumulator is the exact sum of float64 values: a fixed-point number with a bit for each power of two in a float64. The zero value is the
// sum 0. The caller limits the number of values to [MaxCount].
//
// The sum is Σ limb[i] x 2^(32i-1074). Between two carries, a limb is any int64. After a carry, all limbs but the highest are in
// [0, 2^32), so equal sums have equal limbs. Neal, "Fast exact summation using small and large superaccumulators"
// (https://arxiv.org/abs/1505.05571), has the method.
type Accumulator struct {
	limb    [limbs]int64
	pending int32 // additions since the last carry
}

// Add adds a value. It returns ErrNotFinite, and changes nothing, for NaN and infinite values.
func (a *Accumulator) Add(v float64) error {
	mantissa, position, negative := split(v)
	if position < 0 {
		return notFinite(v)
	}
	a.add(position, mantissa, negative)
	return nil
}

// split returns v as mantissa x 2^(position-1074) with its sign, -1 or 0. The position of NaN and of infinite values is -1.
func split(v float64) (mantissa uint64, position int, negative int64) {
	b := math.Float64bits(v)
	mantissa, position, negative = b&(1<<52-1), int(b>>52&0x7ff), int64(b)>>63
	switch position {
	case 0: // subnormal
	//guard:finite-value
	case 0x7ff:
		position = -1
	default:
		mantissa |= 1 << 52
		position--
	}
	return mantissa, position, negative
}

func notFinite(v float64) error { return fmt.Errorf("%w: %v", ErrNotFinite, v) }

// add adds mantissa x 2^(position-1074); negative is -1 or 0. mantissa < 2^53.
func (a *Accumulator) add(position int, mantissa uint64, negative int64) {
	if a.pending++; a.pending > maxPending {
		a.carry()
		a.pending = 1
	}
	i, shift := uint(position)/limbBits, uint(position)%limbBits
	low := int64(mantissa << shift & (1<<limbBits - 1))
	high := int64(mantissa >> (limbBits - shift))
	a.limb[i] += low ^ negative - negative
	a.limb[i+1] += high ^ negative - negative
}

// AddProduct adds v x n without rounding the product. It returns ErrNotFinite for NaN and infinite values. 0 <= n <= MaxCount.
func (a *Accumulator) AddProduct(v float64, n int64) error {
	mantissa, position, negative := split(v)
	if position < 0 {
		return notFinite(v)
	}
	high, low := bits.Mul64(mantissa, uint64(n))
	for _, half := range [...]uint64{low, high} {
		a.add(position, half&math.MaxUint32, negative)
		a.add(position+limbBits, half>>limbBits, negative)
		position += 2 * limbBits
	}
	return nil
}

// Merge adds the sum of b.
func (a *Accumulator) Merge(b *Accumulator) {
	other := *b // b may be read by others
	other.carry()
	a.carry()
	for i, l := range other.limb {
		a.limb[i] += l
	}
	a.carry()
}

// carry makes the limbs canonical.
func (a *Accumulator) carry() {
	var carry int64
	for i := range limbs - 1 {
		l := a.limb[i] + carry
		carry = l >> limbBits
		//guard:canonical-sum
		a.limb[i] = l & (1<<limbBits - 1)
	}
	a.limb[limbs-1] += carry
	a.pending = 0
}

// magnitude returns the canonical limbs of the absolute value, and the sign: -1, 0 or 1.
func (a *Accumulator) magnitude() (m [limbs]uint32, sign int) {
	c := *a
	c.carry()
	sign = 1
	if c.limb[limbs-1] < 0 {
		sign = -1
		for i := range c.limb {
			c.limb[i] = -c.limb[i]
		}
		c.carry()
	}
	zero := true
	for i, l := range c.limb {
		m[i] = uint32(l)
		zero = zero && l == 0
	}
	if zero {
		sign = 0
	}
	return m, sign
}

// setMagnitude sets the sum from its absolute value.
func (a *Accumulator) setMagnitude(m *[limbs]uint32, sign int) {
	*a = Accumulator{}
	for i, l := range m {
		a.limb[i] = int64(sign) * int64(l)
	}
	a.carry()
}

// bitLen returns the number of bits of the absolute value.
func bitLen(m *[limbs]uint32) int {
	for i := limbs - 1; i >= 0; i-- {
		if m[i] != 0 {
			return i*limbBits + bits.Len32(m[i])
		}
	}
	return 0
}

// Quotient returns the float64 nearest to sum/n, with ties to even. It is infinite if the sum is too large for a float64. n > 0.
func (a *Accumulator) Quotient(n int64) float64 {
	m, sign := a.magnitude()
	var sum, limb big.Int
	for i := limbs - 1; i >= 0; i-- {
		sum.Lsh(&sum, limbBits).Or(&sum, limb.SetUint64(uint64(m[i])))
	}
	divisor := big.NewInt(n)
	divisor.Lsh(divisor, -lowest)
	f, _ := new(big.Rat).SetFrac(&sum, divisor).Float64()
	return math.Copysign(f, float64(sign))
}

// Float64 returns the float64 nearest to the sum. It is infinite if the sum is too large for a float64.
func (a *Accumulator) Float64() float64 { return a.Quotient(1) }
