package taskqueue

import "math/bits"

// Order algorithms. They are part of the stored state: an algorithm that was ever written stays here, with its golden file,
// for as long as a job may live.
const (
	orderIdentity uint8 = 0 // position i is task i
	orderFeistel  uint8 = 1 // the Feistel network below
	orderArrival  uint8 = 2 // of an online dataset: the first pass in order of arrival, later passes by the Feistel network
)

const feistelRounds = 6

// order is the order of one pass: a permutation of 0..n-1 that is computed, not stored. It is an unbalanced Feistel network
// over the smallest power of two that holds n, keyed by (seed, pass). Values beyond n are walked in cycles (Black and Rogaway,
// "Ciphers with Arbitrary Finite Domains", 2002).
type order struct {
	n         uint64
	low, high uint // bits of the two halves
	keys      [feistelRounds]uint64
	identity  bool
}

func newOrder(algorithm uint8, seed uint64, pass Pass, n int) order {
	//guard:first-pass-in-order-of-arrival
	if algorithm == orderIdentity || n < 2 || algorithm == orderArrival && pass == 1 {
		return order{n: uint64(n), identity: true}
	}
	width := uint(bits.Len64(uint64(n - 1)))
	o := order{n: uint64(n), low: width / 2, high: width - width/2}
	x := seed ^ uint64(pass)*0x9e3779b97f4a7c15
	for i := range o.keys {
		x += 0x9e3779b97f4a7c15
		o.keys[i] = mix(x)
	}
	return o
}

// index returns the task at a position, 0 <= position < n.
func (o *order) index(position int) int {
	if o.identity {
		return position
	}
	x := uint64(position)
	for {
		if x = o.encrypt(x); x < o.n {
			return int(x)
		}
	}
}

// position is the inverse of index.
func (o *order) position(index int) int {
	if o.identity {
		return index
	}
	x := uint64(index)
	for {
		if x = o.decrypt(x); x < o.n {
			return int(x)
		}
	}
}

// encrypt changes the high half by the low one in even rounds, and the low half by the high one in odd rounds.
func (o *order) encrypt(x uint64) uint64 {
	lowMask, highMask := uint64(1)<<o.low-1, uint64(1)<<o.high-1
	l, h := x&lowMask, x>>o.low
	for i, k := range o.keys {
		if i%2 == 0 {
			h ^= mix(l^k) & highMask
		} else {
			l ^= mix(h^k) & lowMask
		}
	}
	return h<<o.low | l
}

func (o *order) decrypt(x uint64) uint64 {
	lowMask, highMask := uint64(1)<<o.low-1, uint64(1)<<o.high-1
	l, h := x&lowMask, x>>o.low
	for i := feistelRounds - 1; i >= 0; i-- {
		if i%2 == 0 {
			h ^= mix(l^o.keys[i]) & highMask
		} else {
			l ^= mix(h^o.keys[i]) & lowMask
		}
	}
	return h<<o.low | l
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Order returns the task indices of a shuffled pass, in its order.
func Order(seed uint64, pass Pass, tasks int) []int {
	o := newOrder(orderFeistel, seed, pass, tasks)
	indices := make([]int, tasks)
	for position := range indices {
		indices[position] = o.index(position)
	}
	return indices
}
