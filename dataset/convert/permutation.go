package convert

import "math/bits"

// permutation returns the numbers 0 to n-1 in an order that depends only on n and seed: a Fisher-Yates shuffle with
// splitmix64. It uses no library, because another release of a library could change which samples are held out.
func permutation(n int, seed uint64) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	random := splitmix64(seed)
	for i := n - 1; i > 0; i-- {
		j := random.below(uint64(i) + 1)
		order[i], order[j] = order[j], order[i]
	}
	return order
}

type splitmix64 uint64

func (s *splitmix64) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number from 0 to n-1, each with the same probability (Lemire's method).
func (s *splitmix64) below(n uint64) uint64 {
	for {
		hi, lo := bits.Mul64(s.next(), n)
		if lo >= n || lo >= -n%n {
			return hi
		}
	}
}
