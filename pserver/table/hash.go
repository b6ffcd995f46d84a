package table

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math/bits"
)

const (
	slotBits = 10
	// Slots is the number of slots of every table.
	Slots = 1 << slotBits

	golden = 0x9e3779b97f4a7c15 // by which the state of SplitMix64 grows
)

// mix is the last step of SplitMix64, a permutation of 64 bits.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Key is the secret of a job by which the ids of its tables are hashed. Ids come from untrusted data. Without the key, an attacker
// cannot choose ids that share a slot or a position in its index. The zero key belongs to tables of older versions.
type Key [2]uint64

// KeySize is the size of a key in bytes.
const KeySize = 16

// KeyOf reads a key from its first KeySize bytes; fewer bytes give the zero key.
func KeyOf(b []byte) (k Key) {
	if len(b) >= KeySize {
		k[0], k[1] = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	}
	return k
}

// Bytes is the reverse of KeyOf; nil for the zero key.
func (k Key) Bytes() []byte {
	if k == (Key{}) {
		return nil
	}
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, k[0]), k[1])
}

// MarshalText writes the bytes as hexadecimal digits.
func (k Key) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, k.Bytes()), nil }

// UnmarshalText is the reverse.
func (k *Key) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != KeySize && len(b) != 0 {
		return fmt.Errorf("hash key: expected %d hexadecimal digits, found %d characters", 2*KeySize, len(text))
	}
	*k = KeyOf(b)
	return nil
}

// hash of an id: the upper 10 bits are the slot, the next 32 the place in the
// slot's index, the lowest 8 the tag in it.
//
//guard:keyed-hash
func (k Key) hash(id int64) uint64 {
	h := mix(uint64(id) ^ k[0])
	if k[1] == 0 {
		return h
	}
	return mix(h ^ k[1])
}

// Hash is the slot that an id of the table belongs to, and 32 bits of its hash that say nothing about the slot.
func (c *Config) Hash(id int64) (slot, rest uint32) {
	h := c.Key.hash(id)
	return slotOf(h), uint32(h)
}

// SlotOf is the slot that an id of the table belongs to.
func (c Config) SlotOf(id int64) uint32 { return slotOf(c.Key.hash(id)) }

// SlotOf is the slot that an id belongs to in a table without a key.
func SlotOf(id int64) uint32 { return slotOf(Key{}.hash(id)) }

func slotOf(h uint64) uint32 { return uint32(h >> (64 - slotBits)) }

// firstBucket is where an index of n entries begins to look.
func firstBucket(h uint64, n int) int {
	hi, _ := bits.Mul64(h<<slotBits, uint64(n))
	return int(hi)
}

func tag(h uint64) uint32 { return uint32(h) << rowBits }

// initializer computes the initial values of rows.
type initializer struct {
	kind  string
	scale float32
	key   uint64
}

func newInitializer(c Config) initializer {
	name := fnv.New64a()
	name.Write([]byte(c.Name)) //nolint:errcheck // a hash takes everything
	return initializer{c.Init, c.Scale, mix(c.Seed ^ name.Sum64())}
}

// stream is SplitMix64.
type stream uint64

func (s *stream) next() uint64 {
	*s += golden
	return mix(uint64(*s))
}

func (i initializer) fill(row []float32, id int64) {
	s := stream(mix(i.key ^ uint64(id)))
	switch i.kind {
	case Uniform:
		var u uint64
		for j := range row {
			half := uint32(u >> 32)
			if j%2 == 0 {
				u = s.next()
				half = uint32(u)
			}
			row[j] = (float32(half>>8)*(1.0/(1<<23)) - 1) * i.scale
		}
	case Normal:
		for j := range row {
			sum := int32(-6 * 0xffff)
			for range 3 {
				u := s.next()
				sum += int32(u&0xffff + u>>16&0xffff + u>>32&0xffff + u>>48)
			}
			row[j] = float32(sum) * (1.0 / (1 << 16)) * i.scale
		}
	default:
		clear(row)
	}
}
