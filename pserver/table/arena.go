package table

import (
	"sync"
	"unsafe"
)

const (
	chunkBits = 8
	chunkRows = 1 << chunkBits
	leastRows = 32 // of a slot's first chunk, which grows to chunkRows

	// arenaWords is the approximate size of one allocation.
	arenaWords = 1 << 18
)

// shape is the layout of a row. Its parts are adjacent, since a fetch from memory takes longer than an update.
//
//	| id, low, high | version | updates | dim parameters | the optimizer's state, slice after slice |
//
// A word is 4 bytes. Updates exist only if the rule counts them.
type shape struct {
	head   int // words before the values
	values int // floats
}

func newShape(values int, counted bool) shape {
	if counted {
		return shape{4, values}
	}
	return shape{3, values}
}

func (s shape) words() int { return s.head + s.values }

// record is a row.
type record []uint32

func (r record) id() int64 { return int64(uint64(r[0]) | uint64(r[1])<<32) }

func (r record) setID(id int64) { r[0], r[1] = uint32(id), uint32(uint64(id)>>32) }

// version is the slot's clock at the last update, or marked; 0: the place is free.
func (r record) version() *uint32 { return &r[2] }

// updates is Adam's t; only if counted.
func (r record) updates() *uint32 { return &r[3] }

// floats is the values, shared.
func (s shape) floats(r record) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(&r[s.head])), s.values)
}

// chunk is room for some rows.
type chunk struct {
	words  []uint32
	stamps *[chunkRows]uint8 // by row: the cut before its last update, modulo 256; nil in the memory of a cut
}

// arena allocates many chunks at a time: the garbage collector scans the
// allocations of the arena, not the chunks.
type arena struct {
	shape

	mu   sync.Mutex
	free [][]uint32
}

// take is the words of chunkRows rows.
func (a *arena) take() []uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free) == 0 {
		size := chunkRows * a.words()
		all := make([]uint32, max(1, min(64, arenaWords/size))*size)
		for ; len(all) > 0; all = all[size:] {
			a.free = append(a.free, all[:size:size])
		}
	}
	words := a.free[len(a.free)-1]
	a.free = a.free[:len(a.free)-1]
	return words
}

// give takes chunks back. No reader may use them afterwards. Their content stays: a new row sets all its words.
func (a *arena) give(chunks []chunk) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range chunks {
		if len(c.words) == chunkRows*a.words() { // else a slot's first one, which has memory of its own
			a.free = append(a.free, c.words)
		}
	}
}

// room is the words of some rows, chunkRows at most.
func (a *arena) room(rows int) []uint32 {
	if rows == chunkRows {
		return a.take()
	}
	return make([]uint32, rows*a.words())
}
