package pserver

import (
	"slices"
	"sync"
	"sync/atomic"

	"trainmaster/pserver/table"
)

// cuts makes consistent images of a shard while updates go on. A cut is a
// moment: it has, of every block, the updates before that moment and none
// after. The first update of a block after the moment preserves the block as
// it was (copy on write); blocks that no update changes are copied when the
// writer of the checkpoint reaches them.
type cuts struct {
	current atomic.Pointer[cut] // nil: no checkpoint is being written
	number  uint64              // of the last cut; one checkpoint is written at a time

	freeMu sync.Mutex
	free   map[int][]*image // room that is not in use, by elements. It stays from cut to cut: new pages of the system take longer than the copy
}

// cut is what is fixed at the moment.
type cut struct {
	number   uint64
	view     *holding
	version  uint64
	jobEpoch uint32
	trainers []*trainer // by ordinal; those that come later have pushed nothing before the moment
	tables   []*table.Cut
	retired  retirement
}

// image is a copy of a block at a cut.
type image struct {
	params  []float32
	state   []float32
	updates uint64
	version uint64
	applied []uint64 // by cut.trainers
}

// take is called with the block's lock held.
func (i *image) take(b *block, c *cut) {
	i.begin(b, c)
	i.keep(b, 0, b.Len)
}

// begin is called with the block's lock held. The values follow, by keep.
func (i *image) begin(b *block, c *cut) {
	i.size(b)
	i.updates, i.version = b.updates, b.version
	i.applied = i.applied[:0]
	for _, t := range c.trainers {
		i.applied = append(i.applied, t.applied[b.local])
	}
}

// size makes room for the values of a block.
func (i *image) size(b *block) {
	i.params = slices.Grow(i.params[:0], len(b.params))[:len(b.params)]
	i.state = slices.Grow(i.state[:0], len(b.state))[:len(b.state)]
}

// keep takes elements lo to hi, with the block's lock held: best just before they change, as they are in the cache then.
// No image keeps nothing.
func (i *image) keep(b *block, lo, hi int) {
	if i == nil {
		return
	}
	copy(i.params[lo:hi], b.params[lo:hi])
	for slot := 0; slot < len(b.state); slot += b.Len {
		copy(i.state[slot+lo:slot+hi], b.state[slot+lo:slot+hi])
	}
}

// startCut fixes the moment. Until endCut every update preserves what it changes. since returns the earlier cut that the rows of a
// table are compared with, nil for all rows; a nil since compares with none.
func (s *shard) startCut(since func(h *holding, table int, number uint64) *table.Cut) *cut {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock() // no trainer joins, and pushes, between the roster and the moment
	defer s.mu.Unlock()
	s.cuts.number++
	c := &cut{
		number: s.cuts.number, view: s.holding.Load(), version: s.version.Load(), jobEpoch: s.jobEpoch.Load(), trainers: s.rosterLocked(), retired: s.retired,
	}
	c.tables = s.cutTables(c, since)
	s.cuts.current.Store(c)
	return c
}

// endCut drops the preserved images that were not collected.
func (s *shard) endCut(h *holding) {
	s.cuts.current.Store(nil)
	for _, b := range h.blocks {
		b.mu.Lock()
		i := b.image
		b.image = nil
		b.mu.Unlock()
		if i != nil {
			s.cuts.recycle(i)
		}
	}
	for _, t := range h.tables {
		t.EndCut()
	}
	s.cuts.freeMu.Lock()
	defer s.cuts.freeMu.Unlock()
	needed := h.sizes()
	for size, free := range s.cuts.free {
		if n := needed[size]; n < len(free) { // some were moved to other shards
			s.cuts.free[size] = slices.Clone(free[:n])
		}
	}
}

// sizes counts the blocks by their elements.
func (h *holding) sizes() map[int]int {
	n := map[int]int{}
	for _, b := range h.blocks {
		n[b.Len]++
	}
	return n
}

// preserveLocked is called before any change of a block, with its lock held. The image that it returns has to keep all
// elements, each before it changes; nil: no cut wants them.
func (s *shard) preserveLocked(b *block) *image {
	c := s.cuts.current.Load()
	if c == nil || b.cut == c.number {
		return nil
	}
	b.cut = c.number
	b.image = s.cuts.room(b)
	b.image.begin(b, c)
	return b.image
}

// reserve takes the memory that a cut of all blocks needs at most, so that no update has to wait for it.
func (s *shard) reserve() {
	if h := s.holding.Load(); h != nil {
		s.cuts.reserve(h)
	}
}

// recycle takes back an image that collect returned.
func (s *shard) recycle(i *image) { s.cuts.recycle(i) }

// collect returns the block as it was at the cut. The image is the caller's until recycle.
func (s *shard) collect(b *block, c *cut) *image {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cut == c.number {
		i := b.image
		b.image = nil
		return i
	}
	b.cut = c.number
	i := s.cuts.room(b)
	i.take(b, c)
	return i
}

func (cs *cuts) room(b *block) *image {
	cs.freeMu.Lock()
	defer cs.freeMu.Unlock()
	free := cs.free[b.Len]
	if n := len(free); n > 0 {
		cs.free[b.Len] = free[:n-1]
		return free[n-1]
	}
	return &image{}
}

// reserve takes the memory of a cut of all blocks.
func (cs *cuts) reserve(h *holding) {
	cs.freeMu.Lock()
	defer cs.freeMu.Unlock()
	needed := h.sizes()
	for _, b := range h.blocks {
		if len(cs.free[b.Len]) >= needed[b.Len] {
			continue
		}
		i := &image{}
		i.size(b)
		for _, values := range [][]float32{i.params, i.state} {
			clear(values[:cap(values)]) // the system gives pages when they are written
		}
		cs.giveLocked(i)
	}
}

func (cs *cuts) recycle(i *image) {
	cs.freeMu.Lock()
	defer cs.freeMu.Unlock()
	cs.giveLocked(i)
}

func (cs *cuts) giveLocked(i *image) {
	if cs.free == nil {
		cs.free = map[int][]*image{}
	}
	cs.free[len(i.params)] = append(cs.free[len(i.params)], i)
}
